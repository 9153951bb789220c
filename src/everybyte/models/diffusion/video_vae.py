"""The autoencoder of CogVideoX (diffusers 0.42). Tokens are pixels of two latent frames, which are decoded together."""

from __future__ import annotations

from everybyte.basics.errors import BadInput
from everybyte.layers.diffusion.video_vae import GROUP, Scale, VideoDecoder, VideoEncoder
from everybyte.layers.network import Network, Run
from everybyte.layers.recording.size import TOKENS, Dim
from everybyte.models.config import Config

MOST_LEVELS = 8
MOST_FRAMES = 64
"""Frames for each latent one."""


def build(c: Config) -> Network:
    """The network of a diffusers config.json of this family."""
    channels = c.integers("block_out_channels", (128, 256, 256, 512))
    groups = c.integer("norm_num_groups", default=32)
    if not 1 <= len(channels) <= MOST_LEVELS or min(channels) < 1:
        raise BadInput(f"{c.path}.block_out_channels", f"must be 1 to {MOST_LEVELS} positive numbers, not {list(channels)!r}")
    for width in channels:
        c.divides("norm_num_groups", groups, width)
    times = c.integer("temporal_compression_ratio", default=4)
    longer = times.bit_length() - 1
    if times > MOST_FRAMES or 2**longer != times or longer >= len(channels):
        raise BadInput(f"{c.path}.temporal_compression_ratio", f"must be a power of two below 2^{len(channels)}, not {times}")
    latent, blocks = c.integer("latent_channels", default=16), c.integer("layers_per_block", default=3)
    inside, out = c.integer("in_channels", default=3), c.integer("out_channels", default=3)
    scale = Scale(2 ** (len(channels) - 1), times)
    encoder = VideoEncoder(channels, latent, blocks, groups, longer)
    decoder = VideoDecoder(channels, out, latent, blocks, groups, longer)
    runs = (Run("encoder", -1, 1, encoder, (scale.frames(), Dim("C", inside))), Run("decoder", -1, 1, decoder, (TOKENS, Dim("C", latent))))
    pixels = c.integer("sample_height", default=480) * c.integer("sample_width", default=720) // scale.side**2
    return Network(c.name, c.architecture, out, 0, runs, None, None, None, dtype=c.dtype(), tokens=GROUP * max(pixels, 1))
