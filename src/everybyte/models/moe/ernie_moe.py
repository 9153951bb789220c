"""ERNIE 4.5 MoE: Llama's attention, softmax routing with a frozen correction of the choice (modeling_ernie4_5_moe.py)."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections, Rotary
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts, Gate
from everybyte.layers.experts.router import Router
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import decoder, expert_counts, layer_count, tied


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden, layers = c.integer("hidden_size"), layer_count(c)
    heads, kv_heads, head_dim = c.heads(hidden)
    experts, top_k = expert_counts(c)
    bias, ffn = c.flag("use_bias", default=False), c.integer("moe_intermediate_size")
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=bias, out_bias=bias),
        rotary=Rotary(tables="layer", wide=True),
    )
    dense = GatedMLP(hidden, c.integer("intermediate_size"), c.activation(), bias=bias)
    router = Router(experts, top_k, wide=True, normalize="clamped", narrow=True, correction="moe_statics.e_score_correction_bias", learned_correction=True)
    shared = c.integer("moe_num_shared_experts", default=0, least=0)
    shared_mlp = GatedMLP(hidden, ffn * shared, c.activation(), bias=bias) if shared else None
    moe = MoE(hidden, router, Experts(hidden, ffn, experts, top_k, Gate(c.activation())), shared_mlp, shared_first=True)
    first, step = c.integer("moe_layer_start_index", default=1, least=0), c.integer("moe_layer_interval", default=1)
    last = c.integer("moe_layer_end_index", default=-1, least=-1)
    last = layers - 1 if last == -1 else last
    blocks = [Block(attention, moe if (index + 1) % step == 0 and first <= index <= last else dense) for index in range(layers)]
    return decoder(c, layers=blocks, tied=tied(c, default=True), experts=(experts, top_k))
