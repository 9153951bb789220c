"""U-Nets of Stable Diffusion 1, 2 and XL, and the autoencoder beside them (diffusers 0.42). Tokens are pixels of the latent image, m those of the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everybyte.basics.errors import BadInput, Unsupported
from everybyte.layers.diffusion.unet import Cross, Level, UNet
from everybyte.layers.diffusion.vae import Decoder, Encoder, image_map
from everybyte.layers.heads.loss import RegressionHead
from everybyte.layers.network import Network, Run
from everybyte.layers.recording.size import TOKENS, Dim
from everybyte.models.config import Config, shorten

ONLY: Mapping[str, Any] = {
    "mid_block_type": "UNetMidBlock2DCrossAttn",
    "resnet_time_scale_shift": "default",
    "act_fn": "silu",
    "dual_cross_attention": False,
    "only_cross_attention": False,
    "class_embed_type": None,
    "encoder_hid_dim": None,
    "time_cond_proj_dim": None,
    "conv_in_kernel": 3,
    "conv_out_kernel": 3,
    "time_embedding_type": "positional",
    "mid_block_only_cross_attention": None,
    "cross_attention_norm": None,
    "num_class_embeds": None,
    "time_embedding_dim": None,
    "dropout": 0.0,
}
"""Fields of a U-Net for which one value is supported."""
CLIP_TOKENS = 77
"""Tokens of a prompt that CLIP's text encoder hands on, whatever its length."""
MOST_EACH = 1000
"""More heads or transformer blocks of a level are a damaged file."""


def build(c: Config) -> Network:
    """The network of a diffusers config.json of this family."""
    return _autoencoder(c) if c.architecture == "AutoencoderKL" else _unet(c)


def _unet(c: Config) -> Network:
    for key, value in ONLY.items():
        if c.fields.get(key, value) not in (value, None):
            raise Unsupported(f"{c.path}.{key}", f"{c.fields[key]!r} is not supported, only {value!r}")
    channels = c.integers("block_out_channels", (320, 640, 1280, 1280))
    groups = c.integer("norm_num_groups", default=32)
    _check_channels(c, channels, groups)
    blocks = c.integer("layers_per_block", default=2)
    heads, depths = _each(c, "attention_head_dim", channels, 8), _each(c, "transformer_layers_per_block", channels, 1)
    prompt, linear = c.integer("cross_attention_dim", default=1280), c.flag("use_linear_projection", default=False)
    for width, count in zip(channels, heads, strict=True):
        c.divides("attention_head_dim", count, width)
    crosses = [Cross(count, depth, prompt, linear, groups) for count, depth in zip(heads, depths, strict=True)]
    down, up = _kinds(c, "down_block_types", "DownBlock2D", len(channels)), _kinds(c, "up_block_types", "UpBlock2D", len(channels))
    levels = tuple(
        Level(width, cross if on_way_down else None, cross if on_way_up else None)
        for width, cross, on_way_down, on_way_up in zip(channels, crosses, down, reversed(up), strict=True)
    )
    added = c.text("addition_embed_type", default="")
    if added not in ("", "text_time"):
        raise Unsupported(f"{c.path}.addition_embed_type", f"{added!r} is not supported, only null and text_time")
    inside, out = c.integer("in_channels", default=4), c.integer("out_channels", default=4)
    extra = c.integer("projection_class_embeddings_input_dim") if added else 0
    net = UNet(inside, out, levels, blocks, groups, crosses[-1], extra)
    return Network(
        c.name,
        c.architecture,
        out,
        0,
        (Run("unet", -1, 1, net, (TOKENS, Dim("C", inside))),),
        None,
        None,
        RegressionHead(out),
        dtype=c.dtype(),
        tokens=c.integer("sample_size", default=64) ** 2,
        memory_tokens=CLIP_TOKENS,
    )


def _autoencoder(c: Config) -> Network:
    channels = c.integers("block_out_channels", (64,))
    groups = c.integer("norm_num_groups", default=32)
    _check_channels(c, channels, groups)
    for key, kind in (("down_block_types", "DownEncoderBlock2D"), ("up_block_types", "UpDecoderBlock2D")):
        if any(name != kind for name in c.texts(key, (kind,))):
            raise Unsupported(f"{c.path}.{key}", f"only {kind} is supported")
    latent, blocks = c.integer("latent_channels", default=4), c.integer("layers_per_block", default=1)
    attention = c.flag("mid_block_add_attention", default=True)
    inside, out, scale = c.integer("in_channels", default=3), c.integer("out_channels", default=3), 2 ** (len(channels) - 1)
    encoder = Encoder(channels, latent, blocks, groups, attention, c.flag("use_quant_conv", default=True))
    decoder = Decoder(channels, out, latent, blocks, groups, attention, c.flag("use_post_quant_conv", default=True))
    runs = (Run("encoder", -1, 1, encoder, image_map(scale, inside)), Run("decoder", -1, 1, decoder, (TOKENS, Dim("C", latent))))
    side = c.integer("sample_size", default=32)
    return Network(c.name, c.architecture, out, 0, runs, None, None, None, dtype=c.dtype(), tokens=(max(side // scale, 1)) ** 2)


def _check_channels(c: Config, channels: tuple[int, ...], groups: int) -> None:
    if not channels or len(channels) > 8 or min(channels) < 1:
        raise BadInput(f"{c.path}.block_out_channels", f"must be 1 to 8 positive numbers, not {list(channels)!r}")
    for width in channels:
        c.divides("norm_num_groups", groups, width)


def _each(c: Config, key: str, channels: tuple[int, ...], default: int) -> tuple[int, ...]:
    """One number for every level, or a list of one each."""
    if isinstance(c.fields.get(key), list):
        listed = c.integers(key)
        if len(listed) != len(channels) or not 1 <= min(listed) <= max(listed) <= MOST_EACH:
            raise BadInput(f"{c.path}.{key}", f"must be one number from 1 to {MOST_EACH} for each of the {len(channels)} levels, not {shorten(list(listed))}")
        return listed
    return (c.integer(key, default=default),) * len(channels)


def _kinds(c: Config, key: str, plain: str, levels: int) -> tuple[bool, ...]:
    """Which levels have attention."""
    cross = f"CrossAttn{plain}"
    down = plain.startswith("Down")
    listed = c.texts(key, ((cross,) * (levels - 1) + (plain,)) if down else ((plain,) + (cross,) * (levels - 1)))
    if len(listed) != levels:
        raise BadInput(f"{c.path}.{key}", f"must name a kind for each of the {levels} levels of block_out_channels")
    wrong = next((kind for kind in listed if kind not in (plain, cross)), None)
    if wrong is not None:
        raise Unsupported(f"{c.path}.{key}", f"{wrong} is not supported, only {plain} and {cross}")
    return tuple(kind == cross for kind in listed)
