"""Cohere Command R and Aya: LayerNorm without bias, both branches side by side, scaled logits; Cohere 2 with windows in three of four layers."""

from __future__ import annotations

from msgspec.structs import replace

from everybyte.layers.attention.grouped import Attention, Projections, QkNorm, Rotary
from everybyte.layers.blocks.transformer import ParallelBlock
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import decoder, layer_count, tied, window
from everybyte.models.patterns import sliding_layers

NORM = Norm("layer", "written")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    second = c.architecture == "Cohere2ForCausalLM"
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    bias = c.flag("attention_bias", default=False)
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=bias, out_bias=bias),
        rotary=None if second else Rotary(wide=True),
        qk_norm=QkNorm(over="head", kind="layer", style="written") if not second and c.flag("use_qk_norm", default=False) else QkNorm(),
        dropout=c.number("attention_dropout"),
    )
    block = ParallelBlock(attention, GatedMLP(hidden, c.integer("intermediate_size"), c.activation()), NORM, residual_first=True)
    local = replace(block, mixer=replace(attention, rotary=Rotary(wide=True), window=window(c, 4096)))
    layers = [local if slide else block for slide in sliding_layers(c, layer_count(c), period=4 if second else 0)]
    tie = tied(c, default=True)
    return decoder(c, tied=tie, norm=NORM, layers=layers, head=Head(hidden, c.integer("vocab_size"), tie, scaled=True))
