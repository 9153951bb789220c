"""Bytes kept for backward by the towers of vision-language models, to the byte against transformers on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from module_bytes import difference, layer_keeps, module_keeps
from transformers.models.gemma3.modeling_gemma3 import Gemma3MultiModalProjector
from transformers.models.mistral3.modeling_mistral3 import Mistral3MultiModalProjector
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from everybyte.layers.network import Tower, declare, hidden_dims
from everybyte.layers.recording.size import Batch, Dims
from everybyte.models.count import DECLARE, parts
from everybyte.models.registry import build

H, N = 96, 64
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
TOWER = {"hidden_size": H, "intermediate_size": 200, "num_hidden_layers": 1, "num_attention_heads": 6, "patch_size": 14, "image_size": 112}
BOTH = pytest.mark.parametrize("amp", [False, True], ids=["bf16", "autocast"])
KERNELS = pytest.mark.parametrize("attention", ["sdpa", "eager"])


def tower_of(architecture: str, vision: Any, **fields: Any) -> Tower:
    """Our tower of a vision config."""
    text = {**TEXT, **fields.pop("text", {})}
    return build({"architectures": [architecture], "model_type": "any", "text_config": text, "vision_config": vision.to_dict(), **fields}).towers[0]


def agree(module: torch.nn.Module, call: Callable[[], Any], layer: Any, dims: Dims, batch: Batch, amp: bool, **options: Any) -> None:
    """Both keep the same number of storages of every size."""
    measured = module_keeps(module, call, amp, options.pop("outside", ()))
    ours = layer_keeps(layer, dims, batch, amp, **options)
    assert measured == ours, difference(measured, ours)


def kind(amp: bool) -> torch.dtype:
    """Type of the weights."""
    return torch.float32 if amp else torch.bfloat16


QWENS = {
    "Qwen2VLForConditionalGeneration": (
        Qwen2VisionTransformerPretrainedModel,
        Qwen2VLVisionConfig,
        {"embed_dim": H, "hidden_size": 64, "depth": 1, "num_heads": 6},
    ),
    "Qwen2_5_VLForConditionalGeneration": (
        Qwen2_5_VisionTransformerPretrainedModel,
        Qwen2_5_VLVisionConfig,
        {"hidden_size": H, "out_hidden_size": 64, "intermediate_size": 200, "depth": 1, "num_heads": 6, "fullatt_block_indexes": [0]},
    ),
    "Qwen3VLForConditionalGeneration": (
        Qwen3VLVisionModel,
        Qwen3VLVisionConfig,
        {"hidden_size": H, "out_hidden_size": 64, "intermediate_size": 200, "depth": 1, "num_heads": 6, "deepstack_visual_indexes": []},
    ),
}


@BOTH
@KERNELS
@pytest.mark.parametrize("architecture", QWENS)
def test_qwen_towers(architecture: str, amp: bool, attention: str) -> None:
    """Qwen2-VL, 2.5-VL and 3-VL: one projection for q, k and v whose storage v keeps whole, fp32 positions, results joined image by image."""
    model_class, config_class, fields = QWENS[architecture]
    config = config_class(**fields)
    config._attn_implementation = attention
    model = model_class(config).to(kind(amp))
    tower = tower_of(architecture, config)
    x = torch.randn(N, H, dtype=kind(amp), requires_grad=True) * 1
    turns = model.rotary_pos_emb(x, torch.zeros(N, 2, dtype=torch.long))
    lengths = torch.tensor([0, N], dtype=torch.int32)
    block = model.blocks[0]
    call = lambda: block(x, cu_seqlens=lengths, position_embeddings=turns)  # noqa: E731 - one call, named for the line's sake
    agree(model, call, tower.runs[0].layer, hidden_dims(H), Batch(1, N, N), amp, attention=attention, outside=turns)


@BOTH
@pytest.mark.parametrize("architecture", ["Qwen2VLForConditionalGeneration", "Qwen3VLForConditionalGeneration"])
def test_qwen_mergers(architecture: str, amp: bool) -> None:
    """Four patches side by side, two linear layers."""
    model_class, config_class, fields = QWENS[architecture]
    config = config_class(**fields)
    model = model_class(config).to(kind(amp))
    x = torch.randn(N, H, dtype=kind(amp), requires_grad=True) * 1
    agree(model, lambda: model.merger(x), tower_of(architecture, config).tail, hidden_dims(H), Batch(1, N, N), amp)


@BOTH
def test_qwen_patches(amp: bool) -> None:
    """Patches that are cut out by the processor: the convolution keeps them."""
    model_class, config_class, fields = QWENS["Qwen2VLForConditionalGeneration"]
    config = config_class(**fields)
    model = model_class(config).to(kind(amp))
    tower = tower_of("Qwen2VLForConditionalGeneration", config)
    pixels = torch.randn(N, 3 * 2 * 14 * 14, dtype=kind(amp))
    agree(model, lambda: model.patch_embed(pixels), tower.stem, tower.stem_dims, Batch(1, N, N), amp)


@BOTH
def test_pixtral_and_the_projector_of_mistral_3(amp: bool) -> None:
    """Rotary positions and gated feed-forward over patches; a merge of four patches in front of the projector."""
    config = transformers.PixtralVisionConfig(**TOWER)
    config._attn_implementation = "eager"
    model = transformers.PixtralVisionModel(config).to(kind(amp))
    whole = transformers.Mistral3Config(vision_config=config, text_config=transformers.MistralConfig(**TEXT))
    projector = Mistral3MultiModalProjector(whole).to(kind(amp))
    tower = tower_of("Mistral3ForConditionalGeneration", config, text={"model_type": "mistral"})
    x = torch.randn(1, N, H, dtype=kind(amp), requires_grad=True) * 1
    turns = (torch.randn(N, 16, dtype=kind(amp)), torch.randn(N, 16, dtype=kind(amp)))
    block = model.transformer.layers[0]
    mask = torch.zeros(1, 1, N, N, dtype=kind(amp))
    call = lambda: block(x, mask, position_embeddings=turns)  # noqa: E731 - one call, named for the line's sake
    agree(model, call, tower.runs[0].layer, hidden_dims(H), Batch(1, N, N), amp, attention="eager", outside=(*turns, mask))
    agree(projector, lambda: projector(x[0], [(112, 112)]), tower.tail, hidden_dims(H), Batch(1, N, N), amp)


class InOrder(torch.nn.Module):
    """One module after another."""

    def __init__(self, *modules: torch.nn.Module) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(modules)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All in order."""
        for part in self.parts:
            x = part(x)
        return x


@BOTH
def test_siglip_and_the_projector_of_gemma_3(amp: bool) -> None:
    """A block, the stem without a class token, and the mean over neighbouring patches that the norm and the product follow."""
    config = transformers.SiglipVisionConfig(**TOWER, vision_use_head=False)
    text = transformers.Gemma3TextConfig(**TEXT, head_dim=16)
    projector = Gemma3MultiModalProjector(transformers.Gemma3Config(vision_config=config, text_config=text, mm_tokens_per_image=16)).to(kind(amp))
    config._attn_implementation = "sdpa"
    model = transformers.SiglipVisionModel(config).to(kind(amp))
    fields = {"mm_tokens_per_image": 16, "text": {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 32}}
    tower = tower_of("Gemma3ForConditionalGeneration", config, **fields)
    x = torch.randn(2, N, H, dtype=kind(amp), requires_grad=True) * 1
    pixels = torch.randn(2, 3, 112, 112, dtype=kind(amp))
    agree(model, lambda: model.encoder.layers[0](x, None), tower.runs[0].layer, hidden_dims(H), Batch(2, N, N), amp)
    agree(model, lambda: model.embeddings(pixels), tower.stem, tower.stem_dims, Batch(2, N, N), amp)
    tail = InOrder(model.post_layernorm, projector)
    agree(tail, lambda: tail(x), tower.tail, hidden_dims(H), Batch(2, N, N), amp)


@BOTH
@KERNELS
def test_clip(amp: bool, attention: str) -> None:
    """CLIP's image encoder: quick GELU out of two operations, a class token, a norm before the blocks."""
    config = transformers.CLIPVisionConfig(**TOWER)
    config._attn_implementation = attention
    model = transformers.CLIPVisionModel(config).to(kind(amp))
    tower = tower_of("LlavaForConditionalGeneration", config, text={"model_type": "llama"})
    x = torch.randn(2, N, H, dtype=kind(amp), requires_grad=True) * 1
    pixels = torch.randn(2, 3, 112, 112, dtype=kind(amp))
    agree(model, lambda: model.encoder.layers[0](x, None), tower.runs[0].layer, hidden_dims(H), Batch(2, N, N), amp, attention=attention)
    agree(model, lambda: model.pre_layrnorm(model.embeddings(pixels)), tower.stem, tower.stem_dims, Batch(2, N + 1, N + 1), amp)


MLLAMA_TOWER = {
    "hidden_size": H,
    "intermediate_size": 200,
    "num_hidden_layers": 3,
    "num_global_layers": 2,
    "attention_heads": 6,
    "patch_size": 14,
    "image_size": 56,
    "vision_output_dim": 3 * H,
    "intermediate_layers_indices": [0, 1],
}
TILES, PATCHES, PADDED = 4, 17, 24
"""Tiles of an image, patches of a tile with its class token, the same padded."""


def mllama(attention: str, amp: bool, tied: bool = False) -> Any:
    """A small Mllama of transformers."""
    vision = transformers.MllamaVisionConfig(**MLLAMA_TOWER)
    text = transformers.MllamaTextConfig(
        hidden_size=64,
        intermediate_size=88,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=104,
        cross_attention_layers=[1],
        pad_token_id=0,
        tie_word_embeddings=tied,
    )
    config = transformers.MllamaConfig(vision_config=vision, text_config=text)
    config.architectures = ["MllamaForConditionalGeneration"]
    config._attn_implementation = attention
    return transformers.MllamaForConditionalGeneration(config).to(kind(amp))


@BOTH
@KERNELS
def test_mllama_towers(amp: bool, attention: str) -> None:
    """Tiles of an image: the stem, blocks without and with gates under one mask, what is between the encoders, and the projection of joined states."""
    model = mllama(attention, amp)
    whole = model.model.vision_model
    tower = build(model.config.to_dict()).towers[0]
    tokens = TILES * PADDED
    batch = Batch(2, tokens, tokens)
    x = torch.randn(2, tokens, H, dtype=kind(amp), requires_grad=True) * 1
    mask = torch.zeros(2, 1, tokens, tokens, dtype=kind(amp))
    ratios = torch.ones(2, 1, dtype=torch.long)
    for encoder, run in ((whole.transformer, tower.runs[0]), (whole.global_transformer, tower.runs[2])):
        call = lambda block=encoder.layers[0]: block(x, mask)  # noqa: E731 - one call, named for the line's sake
        agree(whole, call, run.layer, hidden_dims(H), batch, amp, attention=attention, outside=(mask,))
    between = lambda: whole.post_tile_positional_embedding(whole.layernorm_post(x).reshape(2, TILES, PADDED, H), ratios)  # noqa: E731
    agree(whole, between, tower.runs[1].layer, hidden_dims(H), batch, amp, outside=(ratios,))
    pixels = torch.randn(2, TILES, 3, 56, 56, dtype=kind(amp))

    def stem() -> torch.Tensor:
        """The lines of MllamaVisionModel.forward before its encoder."""
        out = whole.patch_embedding(pixels.flatten(0, 1)).flatten(2).transpose(1, 2).reshape(2, TILES, -1, H)
        out = whole.pre_tile_positional_embedding(out, ratios)
        out = whole.apply_class_embedding(out.reshape(2 * TILES, -1, H)).reshape(2, TILES, PATCHES, H)
        return torch.nn.functional.pad(whole.layernorm_pre(whole.gated_positional_embedding(out, ratios)), (0, 0, 0, PADDED - PATCHES))

    agree(whole, stem, tower.stem, tower.stem_dims, batch, amp, outside=(ratios,))

    def tail() -> torch.Tensor:
        """The lines behind its encoders, and the projector."""
        stacked = torch.stack([x, x], dim=-1).reshape(2, TILES, PADDED, -1)[:, :, : PATCHES - PADDED]
        return model.model.multi_modal_projector(torch.cat([x.reshape(2, TILES, PADDED, H)[:, :, : PATCHES - PADDED], stacked], dim=-1))

    agree(model, tail, tower.tail, hidden_dims(H), batch, amp)


@BOTH
@KERNELS
@pytest.mark.parametrize("b", [1, 2])
def test_mllama_decoder(amp: bool, attention: str, b: int) -> None:
    """A block with cross-attention under a mask of its own, rows of text without an image zeroed; a block of Llama beside it."""
    model = mllama(attention, amp)
    network = build(model.config.to_dict())
    s, m = 20, TILES * PATCHES
    x = torch.randn(b, s, 64, dtype=kind(amp), requires_grad=True) * 1
    states = torch.randn(b, m, 64, dtype=kind(amp), requires_grad=True) * 1
    mask, rows = torch.zeros(b, 1, s, m, dtype=kind(amp)), torch.ones(b, 1, s, 1, dtype=kind(amp))
    block = model.model.language_model.layers[1]
    call = lambda: block(x, states, mask, None, rows)  # noqa: E731 - one call, named for the line's sake
    agree(model, call, network.runs[1].layer, hidden_dims(64), Batch(b, s, s, m), amp, attention=attention, outside=(mask, rows, states))


@pytest.mark.parametrize("tied", [False, True])
def test_mllama_parameters(tied: bool) -> None:
    """Names and sizes of all parameters are those of transformers, of the tower and of the decoder."""
    model = mllama("sdpa", amp=True, tied=tied)
    theirs = {name: p.numel() for name, p in model.named_parameters()}
    ours: dict[str, int] = {}
    network = build(model.config.to_dict())
    runs = [(run, hidden_dims(tower.hidden)) for tower in network.towers for run in tower.runs] + [(run, hidden_dims(network.hidden)) for run in network.runs]
    for run, dims in runs:
        for parameter in declare(run.layer, DECLARE, dims).parameters:
            numbers = range(run.first, run.first + run.count) if run.first >= 0 else ("",)
            ours |= {f"{run.prefix}.{number}.{parameter.name}".replace("..", "."): parameter.numel for number in numbers}
    for part in parts(network):
        if not part.path:
            ours |= {p.name: p.numel for p in declare(part.layer, DECLARE, part.dims).parameters if not p.tied}
    assert ours == theirs
