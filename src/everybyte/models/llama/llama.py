"""Llama and the dense decoders that share its block: Mistral, Qwen 2 and 3, Yi, MiMo, SmolLM3, Granite, Seed-OSS, Ernie 4.5, Hunyuan."""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec.structs import replace

from everybyte.layers.attention.grouped import Attention, Projections, QkNorm, Rotary, Scores
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP, PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import decoder, layer_count, tied, window
from everybyte.models.patterns import sliding_layers


class Variant(NamedTuple):
    """What an architecture does differently from Llama. Defaults are those of its configuration class."""

    qkv_bias: bool = False
    """q, k and v have biases whatever the file says; else as `attention_bias`."""
    out_bias: bool = True
    """`attention_bias` counts for the last projection too."""
    attention_bias: bool = False
    qk_norm: QkNorm = QkNorm()
    tied: bool = False
    window: int = 0
    """Default of `sliding_window`."""
    gated: bool = True
    scaled: bool = False
    """Embedding, branches and logits are multiplied by constants."""
    bias_key: str = "attention_bias"
    head_dim: int = 0
    """Default of `head_dim`, where that is not hidden / heads."""
    full_every: int = 0
    """Of every so many layers the first sees all tokens, where the others slide."""
    unturned: int = 0
    """Default of `no_rope_layer_interval`: every so many layers one has no rotary positions."""
    stretched: bool = False
    """cos and sin are stretched in every layer (pairs of numbers turn together)."""
    rope_wide: bool = False
    norm: str = "llama"
    """Style of the norms."""
    temperature: Literal["", "own"] = ""
    """Queries are scaled by position."""


VARIANTS: dict[str, Variant] = {
    "LlamaForCausalLM": Variant(),
    "MistralForCausalLM": Variant(window=4096),
    "MinistralForCausalLM": Variant(window=4096),
    "Ministral3ForCausalLM": Variant(temperature="own"),
    "Qwen2ForCausalLM": Variant(qkv_bias=True, out_bias=False),
    "Qwen3ForCausalLM": Variant(qk_norm=QkNorm("head"), head_dim=128),
    "MiMoForCausalLM": Variant(qkv_bias=True, out_bias=False),
    "SmolLM3ForCausalLM": Variant(tied=True, unturned=4),
    "GraniteForCausalLM": Variant(scaled=True),
    "SeedOssForCausalLM": Variant(attention_bias=True, out_bias=False, head_dim=128),
    "ArceeForCausalLM": Variant(gated=False),
    "HeliumForCausalLM": Variant(head_dim=128, stretched=True, norm="cast"),
    "CwmForCausalLM": Variant(window=8192, head_dim=128, full_every=4),
    "Ernie4_5ForCausalLM": Variant(tied=True, bias_key="use_bias", head_dim=128, stretched=True, rope_wide=True),
    "HunYuanDenseV1ForCausalLM": Variant(qk_norm=QkNorm("head", names=("query_layernorm", "key_layernorm"), late=True)),
    "InternLMForCausalLM": Variant(bias_key="bias", attention_bias=True),
    "InternLM3ForCausalLM": Variant(),
    "AquilaForCausalLM": Variant(),
    "YiForCausalLM": Variant(),
}
"""Architecture -> its variant (transformers configuration_*.py; InternLM: its repository's configuration_internlm.py)."""


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    variant = VARIANTS[c.architecture]
    block = llama_block(c, variant)
    scaled = variant.scaled
    tie = tied(c, variant.tied)
    head = Head(c.integer("hidden_size"), c.integer("vocab_size"), tie, scaled=scaled)
    return decoder(c, layers=_layers(c, variant, block), tied=tie, norm=block.norm, scaled=scaled, head=head)


def llama_block(c: Config, variant: Variant = Variant()) -> Block:  # noqa: B008 - a constant
    """One block of a Llama-like decoder, seeing all tokens."""
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    if variant.head_dim and not c.has("head_dim"):
        head_dim = variant.head_dim
    bias = variant.qkv_bias or c.flag(variant.bias_key, variant.attention_bias)
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=bias, out_bias=c.flag("attention_out_bias", bias and variant.out_bias)),
        rotary=Rotary(tables="layer" if variant.stretched else "", wide=variant.rope_wide),
        qk_norm=variant.qk_norm,
        scores=Scores(temperature=variant.temperature),
        dropout=c.number("attention_dropout"),
        out_dropout=c.number("residual_dropout"),
    )
    mlp_bias = c.flag("mlp_bias", default=variant.bias_key == "use_bias" and bias)
    ffn, activation = c.integer("intermediate_size"), c.activation("silu" if variant.gated else "relu2")
    mlp = GatedMLP(hidden, ffn, activation, mlp_bias) if variant.gated else PlainMLP(hidden, ffn, activation, mlp_bias, ("up_proj", "down_proj"))
    return Block(attention, mlp, Norm("rms", variant.norm), scaled=variant.scaled, inline=variant.scaled)


def _layers(c: Config, variant: Variant, block: Block) -> list[Block]:
    """The block of each layer: with its sliding window and with or without rotary positions."""
    count = layer_count(c)
    size = window(c, variant.window)
    slides = _slides(c, variant, count) if size else [False] * count
    turns = _turns(c, variant, count)
    return [_with(block, size if slides[index] else 0, turns[index]) for index in range(count)]


def _with(block: Block, size: int, turn: bool) -> Block:
    return replace(block, mixer=replace(block.mixer, window=size, rotary=block.mixer.rotary if turn else None)) if size or not turn else block


def _slides(c: Config, variant: Variant, count: int) -> list[bool]:
    """Which layers slide, for a file that states a window."""
    if c.texts("layer_types"):
        return sliding_layers(c, count)
    if variant.full_every:
        return [index % variant.full_every != 0 for index in range(count)]
    if variant.window:
        return [True] * count
    if not c.flag("use_sliding_window", default=False):
        return [False] * count
    full = c.integer("max_window_layers", default=28, least=0)
    return [index >= full for index in range(count)]


def _turns(c: Config, variant: Variant, count: int) -> list[bool]:
    """Which layers have rotary positions (`no_rope_layers` holds 1 where they do)."""
    listed = c.integers("no_rope_layers")
    if listed:
        return [bool(v) for v in listed[:count]]
    interval = c.integer("no_rope_layer_interval", default=variant.unturned, least=0)
    return [not interval or bool((index + 1) % interval) for index in range(count)]
