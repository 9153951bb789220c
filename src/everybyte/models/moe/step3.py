"""Step 3.5 and 3.7 Flash, text part: a gate on each head's result, windows in most layers, sigmoid routing (modeling_step3p7.py)."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections, QkNorm, Rotary
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.norm import Norm
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts, Gate, GatedProduct
from everybyte.layers.experts.router import Router
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, expert_counts, layer_count, tied, window
from everybyte.models.moe.deepseek import routed_layers
from everybyte.models.patterns import sliding_layers

NORM = Norm(style="gemma")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    return language_model(c.part("text_config"))


def language_model(c: Config, places: Places = Places()) -> Network:  # noqa: B008 - a constant
    """The decoder, under the names that it has alone or inside the vision-language model."""
    hidden = c.integer("hidden_size")
    experts, top_k = expert_counts(c)
    gate = Gate(c.activation(), clamp="after")
    dense = GatedProduct(hidden, c.integer("intermediate_size"), gate)
    shared = GatedProduct(hidden, c.integer("share_expert_dim", "share_expert_dims"), gate)
    router = Router(experts, top_k, score="sigmoid", correction="e_score_correction_bias")
    routed = Experts(hidden, c.integer("moe_intermediate_size"), experts, top_k, gate, looped="stacked")
    moe = MoE(hidden, router, routed, shared, shared_first=True, scaled=True)
    blocks = [
        Block(_attention(c, sliding), moe if routes else dense, NORM)
        for sliding, routes in zip(sliding_layers(c, layer_count(c)), routed_layers(c), strict=True)
    ]
    return decoder(c, layers=blocks, tied=tied(c, default=False), norm=NORM, places=places, experts=(experts, top_k))


def _attention(c: Config, sliding: bool) -> Attention:
    """Sliding layers may have another number of query heads."""
    hidden = c.integer("hidden_size")
    heads, _, head_dim = c.heads(hidden)
    kv_heads = c.integer("num_key_value_heads", "num_attention_groups", default=heads)
    if sliding:
        heads = c.integer("num_sliding_attention_heads", default=heads)
    bias = c.flag("attention_bias", default=False)
    return Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=bias, out_bias=bias),
        rotary=Rotary(dim=head_dim),
        qk_norm=QkNorm(over="head", style="gemma"),
        gate="g_proj",
        window=window(c) if sliding else 0,
        dropout=c.number("attention_dropout"),
    )
