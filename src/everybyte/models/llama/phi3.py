"""Phi 3, 3.5 and 4: Llama with joined projections for q, k, v and for gate and up."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections, Rotary
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import decoder, rotary_dim, tied, window


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(fused="qkv_proj"),
        rotary=Rotary(dim=rotary_dim(c, head_dim)),
        window=window(c),
        dropout=c.number("attention_dropout"),
    )
    mlp = GatedMLP(hidden, c.integer("intermediate_size"), c.activation(), fused_gate="gate_up_proj")
    return decoder(c, Block(attention, mlp, dropout=c.number("resid_pdrop"), inline=True), tied=tied(c, default=False))
