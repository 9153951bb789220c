"""Mixtral: the Llama block with experts in place of the feed-forward layer (modeling_mixtral.py)."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts, Gate
from everybyte.layers.experts.router import Router
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import decoder, expert_counts, tied, window


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    experts, top_k = expert_counts(c)
    attention = Attention(hidden, heads, kv_heads, head_dim, window=window(c), dropout=c.number("attention_dropout"))
    routed = Experts(hidden, c.integer("intermediate_size"), experts, top_k, Gate(c.activation()), names=("w1", "w3", "w2"))
    block = Block(attention, MoE(hidden, Router(experts, top_k), routed))
    return decoder(c, block, tied=tied(c, default=False), experts=(experts, top_k))
