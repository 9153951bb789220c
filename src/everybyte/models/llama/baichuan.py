"""Baichuan 1 and 2: Llama with one joined projection; the 13B has ALiBi (modeling_baichuan.py of baichuan-inc/Baichuan2-7B-Base and -13B-Base)."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections, Rotary
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import decoder, tied


def build(c: Config) -> Network:
    """The network of a config.json of this family. Files of models with ALiBi state no `max_position_embeddings`."""
    hidden = c.integer("hidden_size")
    heads, _, head_dim = c.heads(hidden)
    attention = Attention(
        hidden,
        heads,
        heads,
        head_dim,
        projections=Projections(fused="W_pack"),
        rotary=Rotary() if c.has("max_position_embeddings") else None,
    )
    mlp = GatedMLP(hidden, c.integer("intermediate_size"), c.activation())
    return decoder(c, Block(attention, mlp), tied=tied(c, default=False))
