"""OLMoE: norms over the whole of queries and keys, experts in every layer (modeling_olmoe.py)."""

from __future__ import annotations

from everybyte.basics.errors import Unsupported
from everybyte.layers.attention.grouped import Attention, Projections, QkNorm
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts, Gate
from everybyte.layers.experts.router import Router
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import decoder, expert_counts, tied


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    if c.has("clip_qkv"):
        raise Unsupported(f"{c.path}.clip_qkv", "clipped queries, keys and values are supported for DBRX alone; published OLMoE models leave it null")
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    bias = c.flag("attention_bias", default=False)
    experts, top_k = expert_counts(c)
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=bias, out_bias=bias),
        qk_norm=QkNorm(over="all"),
        dropout=c.number("attention_dropout"),
    )
    router = Router(experts, top_k, normalize="in-place" if c.flag("norm_topk_prob", default=False) else "", narrow=True)
    moe = MoE(hidden, router, Experts(hidden, c.integer("intermediate_size"), experts, top_k, Gate(c.activation())))
    return decoder(c, Block(attention, moe), tied=tied(c, default=False), experts=(experts, top_k))
