"""Bytes kept for backward by diffusion networks, to the byte against diffusers on the CPU: blocks of Flux and SD3, whole small U-Nets and decoders."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from module_bytes import difference, layer_keeps, module_keeps, total

from everybyte.layers.network import Network, hidden_dims
from everybyte.layers.recording.size import Batch
from everybyte.models.registry import build

diffusers = pytest.importorskip("diffusers")

S, M, H = 40, 24, 96
BOTH = pytest.mark.parametrize("amp", [False, True], ids=["bf16", "autocast"])
IMAGES = pytest.mark.parametrize("b", [1, 2])
FLUX = {
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 16,
    "num_attention_heads": 6,
    "joint_attention_dim": 48,
    "pooled_projection_dim": 32,
    "guidance_embeds": True,
    "axes_dims_rope": (4, 6, 6),
}
SD3 = {
    "sample_size": 16,
    "patch_size": 2,
    "in_channels": 4,
    "num_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 6,
    "joint_attention_dim": 48,
    "caption_projection_dim": 96,
    "pooled_projection_dim": 32,
    "out_channels": 4,
    "pos_embed_max_size": 16,
}
UNET = {
    "sample_size": 16,
    "block_out_channels": (32, 64),
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "layers_per_block": 1,
    "cross_attention_dim": 48,
    "attention_head_dim": 4,
    "norm_num_groups": 8,
}
XL = {
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 80,
    "transformer_layers_per_block": [1, 2],
}
VAE = {
    "block_out_channels": (32, 64),
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "sample_size": 32,
}


def pair(name: str, amp: bool, **fields: Any) -> tuple[Any, Network]:
    """A small model of diffusers and our network of its config."""
    torch.manual_seed(0)
    model = getattr(diffusers, name)(**fields).to(torch.float32 if amp else torch.bfloat16).train()
    return model, build(json.loads(json.dumps({"_class_name": name, **model.config})))


def states(b: int, length: int, width: int, amp: bool) -> torch.Tensor:
    """Hidden states that an earlier layer made."""
    return torch.randn(b, length, width, dtype=torch.float32 if amp else torch.bfloat16, requires_grad=True) * 1


@BOTH
@IMAGES
def test_flux(amp: bool, b: int) -> None:
    """A double block, a single block and the tail of Flux: the two streams of a double block are one storage here, two in PyTorch."""
    model, network = pair("FluxTransformer2DModel", amp, **FLUX)
    image, text = states(b, S, H, amp), states(b, M, H, amp)
    temb = torch.randn(b, H, dtype=image.dtype, requires_grad=True) * 1
    turns = (torch.randn(S + M, 16), torch.randn(S + M, 16))
    batch, (double, single) = Batch(b, S, S, M), network.runs
    measured = module_keeps(model, lambda: model.transformer_blocks[0](image, text, temb, turns), amp, (temb, *turns))
    assert total(measured) == total(layer_keeps(double.layer, double.dims, batch, amp))
    measured = module_keeps(model, lambda: model.single_transformer_blocks[0](image, text, temb, turns), amp, (temb, *turns, image, text))
    ours = layer_keeps(single.layer, single.dims, batch, amp)
    assert measured == ours, difference(measured, ours)
    measured = module_keeps(model, lambda: model.proj_out(model.norm_out(image, temb)), amp, (temb,))
    ours = layer_keeps(network.tail, hidden_dims(H), batch, amp)
    assert measured == ours, difference(measured, ours)


@BOTH
@IMAGES
@pytest.mark.parametrize("qk_norm", [None, "rms_norm"])
def test_stable_diffusion_3(amp: bool, b: int, qk_norm: str | None) -> None:
    """A block, and the last one, in which the text is read but does not go on."""
    model, network = pair("SD3Transformer2DModel", amp, **SD3, qk_norm=qk_norm)
    image, text = states(b, S, H, amp), states(b, M, H, amp)
    temb = torch.randn(b, H, dtype=image.dtype, requires_grad=True) * 1
    for block, run in zip(model.transformer_blocks, network.runs, strict=True):
        measured = module_keeps(model, lambda block=block: block(image, text, temb), amp, (temb,))  # type: ignore[misc]
        assert total(measured) == total(layer_keeps(run.layer, run.dims, Batch(b, S, S, M), amp))


@BOTH
@IMAGES
@pytest.mark.parametrize("kind", ["1.5", "XL"])
def test_a_whole_unet(amp: bool, b: int, kind: str) -> None:
    """Every tensor of a small U-Net in the forms of Stable Diffusion 1.5 and XL: residual blocks, transformers, skips, both ends."""
    model, network = pair("UNet2DConditionModel", amp, **UNET, **(XL if kind == "XL" else {}))
    dtype = torch.float32 if amp else torch.bfloat16
    x, prompt = torch.randn(b, 4, 16, 16, dtype=dtype), torch.randn(b, M, 48, dtype=dtype)
    added = {"text_embeds": torch.randn(b, 32, dtype=dtype), "time_ids": torch.randn(b, 6, dtype=dtype)} if kind == "XL" else None
    measured = module_keeps(model, lambda: model(x, torch.tensor(5), prompt, added_cond_kwargs=added), amp, (prompt,))
    run = network.runs[0]
    ours = layer_keeps(run.layer, run.dims, Batch(b, 256, 256, M), amp)
    assert measured == ours, difference(measured, ours)


@BOTH
@IMAGES
def test_a_whole_autoencoder(amp: bool, b: int) -> None:
    """The decoder to the byte; the encoder but for the border of one pixel that each halving pads, which no product of tokens expresses."""
    model, network = pair("AutoencoderKL", amp, **VAE)
    encoder, decoder = network.runs
    dtype = torch.float32 if amp else torch.bfloat16
    latent, image = torch.randn(b, 4, 16, 16, dtype=dtype), torch.randn(b, 3, 32, 32, dtype=dtype)
    measured = module_keeps(model, lambda: model.decode(latent).sample, amp)
    ours = layer_keeps(decoder.layer, decoder.dims, Batch(b, 256, 256), amp)
    assert measured == ours, difference(measured, ours)
    measured = module_keeps(model, lambda: model.quant_conv(model.encoder(image)), amp)
    border = b * 32 * (33 * 33 - 32 * 32) * 2
    assert total(measured) - total(layer_keeps(encoder.layer, encoder.dims, Batch(b, 256, 256), amp)) == border
