"""OLMo 1, 2 and 3: LayerNorm without weights, then norms behind the branches with q and k normalised whole, then windows in most layers."""

from __future__ import annotations

from msgspec.structs import replace

from everybyte.layers.attention.grouped import Attention, Projections, QkNorm, Rotary
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import decoder, layer_count, tied, window
from everybyte.models.patterns import sliding_layers


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    first = c.architecture == "OlmoForCausalLM"
    norm = Norm("layer", "wide", affine=False) if first else Norm("rms", "wide")
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    bias = c.flag("attention_bias", default=False)
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=bias, out_bias=bias, clip=first and c.has("clip_qkv")),
        rotary=Rotary(cast_back=True),
        qk_norm=QkNorm() if first else QkNorm(over="all", style="wide"),
        dropout=c.number("attention_dropout"),
    )
    mlp = GatedMLP(hidden, c.integer("intermediate_size"), c.activation())
    if first:
        block = Block(attention, mlp, norm)
    else:
        block = Block(attention, mlp, norm, ("", ""), post=("post_attention_layernorm", "post_feedforward_layernorm"))
    third = c.architecture == "Olmo3ForCausalLM"
    local = replace(block, mixer=replace(attention, window=window(c, 4096)))
    layers = [local if slide else block for slide in sliding_layers(c, layer_count(c), period=4 if third else 0)]
    return decoder(c, tied=tied(c, default=False), norm=norm, layers=layers)
