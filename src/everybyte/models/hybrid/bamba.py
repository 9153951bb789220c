"""Bamba: Mamba-2 layers with attention in some, half of each head turned (modeling_bamba.py)."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections, Rotary
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, layer_count, tied
from everybyte.models.hybrid.granite_hybrid import mamba2

PLACES = Places(norm="model.final_layernorm")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    bias = c.flag("attention_bias", default=False)
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=bias, out_bias=bias),
        rotary=Rotary(dim=head_dim // 2),
        dropout=c.number("attention_dropout"),
    )
    mamba = mamba2(c)
    mlp = GatedMLP(hidden, c.integer("intermediate_size"), c.activation(), bias=c.flag("mlp_bias", default=False))

    def block(attends: bool) -> Block:
        mixer, name = (attention, "self_attn") if attends else (mamba, "mamba")
        return Block(mixer, mlp, pre=("input_layernorm", "pre_ff_layernorm"), mixer_name=name, mlp_name="feed_forward")

    attending = c.integers("attn_layer_indices")
    layers = [block(index in attending) for index in range(layer_count(c))]
    return decoder(c, layers=layers, tied=tied(c, default=False), places=PLACES)
