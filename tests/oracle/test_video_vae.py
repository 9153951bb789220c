"""CogVideoX's autoencoder against diffusers on the CPU: its weights, and what lives while it decodes."""

from __future__ import annotations

import pytest
import torch
from diffusers import AutoencoderKLCogVideoX
from live_bytes import LiveBytes

from everybyte.basics.dtypes import BF16
from everybyte.engines.diffusers.parts import decoding
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.layers.recording.size import Batch
from everybyte.models.count import parameter_count
from everybyte.models.source import network_of
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.timeline import StepTimeline

CHANNELS = (32, 64, 64, 128)
SIDE = 8
GROUP = 2 * SIDE * SIDE
DECODED = 2 * (8 * SIDE * 8 * SIDE * 8 * 3)
"""bf16 frames of one group: 8 of 64 x 64 pixels."""


def network(channels: tuple[int, ...]) -> dict[str, object]:
    """The config of an autoencoder."""
    return {"config": {"architectures": ["AutoencoderKLCogVideoX"], "block_out_channels": list(channels), "torch_dtype": "bfloat16"}}


def real(frames: int) -> int:
    """Bytes beside weights and latents at the peak of decoding so many latent frames."""
    torch.manual_seed(0)
    blocks = {"down_block_types": ("CogVideoXDownBlock3D",) * 4, "up_block_types": ("CogVideoXUpBlock3D",) * 4}
    vae = AutoencoderKLCogVideoX(block_out_channels=CHANNELS, latent_channels=16, **blocks).to(torch.bfloat16).eval()
    latents = torch.randn(1, 16, frames, SIDE, SIDE, dtype=torch.bfloat16)
    with torch.no_grad(), LiveBytes() as mode:
        for tensor in (*vae.parameters(), latents):
            mode.add(tensor)
        before = mode.live
        mode.reset_peak()
        vae.decode(latents)
    return mode.peak - before


@pytest.mark.parametrize(("frames", "sets", "decoded"), [(2, "new", 0), (4, "old and new", DECODED)], ids=["one group", "two groups"])
def test_decoding(frames: int, sets: str, decoded: int) -> None:
    """Equal to the byte: remembered frames of this group, and of the group before beside them."""
    part = decoding(network_of(network(CHANNELS)), sets)
    setup = Setup(weights=BF16, grad=False, trainable=(), kernels=Kernels(device="cpu"))
    timeline = StepTimeline(part, Recipe(setup, Batch(1, GROUP, GROUP), stream=BF16))
    assert timeline.forward(0, len(timeline.row)).bytes + decoded == real(frames)


def test_weights() -> None:
    """215,583,907 parameters in the sizes of the checkpoint, as diffusers counts them."""
    assert parameter_count(network_of(network((128, 256, 256, 512)))) == 215_583_907
