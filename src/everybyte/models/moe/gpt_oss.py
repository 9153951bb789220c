"""gpt-oss: sinks beside the scores, windows in every second layer, clamped gates, biases everywhere (modeling_gpt_oss.py)."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections, Rotary, Scores
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.norm import Norm
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts, Gate
from everybyte.layers.experts.router import Router
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import decoder, expert_counts, layer_count, tied, window
from everybyte.models.patterns import sliding_layers

NORM = Norm(style="wide")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    experts, top_k = expert_counts(c)
    bias = c.flag("attention_bias", default=True)
    router = Router(experts, top_k, leaf="router", score="chosen-softmax", wide_scores=False, bias=True)
    routed = Experts(hidden, c.integer("intermediate_size"), experts, top_k, Gate(clamp="oai", interleaved=True), bias=True)

    def block(sliding: bool) -> Block:
        attention = Attention(
            hidden,
            heads,
            kv_heads,
            head_dim,
            projections=Projections(qkv_bias=bias, out_bias=bias),
            rotary=Rotary(dim=head_dim),
            scores=Scores(sinks=True, wide_softmax=False),
            window=window(c, 128) if sliding else 0,
            dropout=c.number("attention_dropout"),
        )
        return Block(attention, MoE(hidden, router, routed), NORM)

    layers = [block(sliding) for sliding in sliding_layers(c, layer_count(c), period=2)]
    return decoder(c, layers=layers, tied=tied(c, default=False), norm=NORM, experts=(experts, top_k))
