"""Grok 1 and 2: experts with GELU gates between four norms, in Grok 2 beside a feed-forward layer that every token passes (sglang models/grok.py)."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts, Gate
from everybyte.layers.experts.router import Router
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import decoder, expert_counts, tied


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    experts, top_k = expert_counts(c)
    wide = c.integer("intermediate_size")
    activation = c.activation("gelu")
    routed = Experts(hidden, c.integer("moe_intermediate_size", "intermediate_size"), experts, top_k, Gate(activation), names=("w1", "w3", "w2"))
    beside = GatedMLP(hidden, wide, activation) if c.flag("residual_moe", default=False) else None
    mixture = MoE(hidden, Router(experts, top_k), routed, shared=beside, shared_name="mlp")
    block = Block(
        Attention(hidden, heads, kv_heads, head_dim),
        mixture,
        pre=("pre_attn_norm", "pre_moe_norm"),
        post=("post_attn_norm", "post_moe_norm"),
        mlp_name="block_sparse_moe",
    )
    return decoder(c, block, tied=tied(c, default=True), experts=(experts, top_k))
