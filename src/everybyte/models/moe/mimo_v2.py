"""MiMo-V2-Flash: narrow windows with sinks in most layers, wider keys than values, DeepSeek-V3's routing (modeling_mimo_v2_flash.py)."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections, Rotary, Scores
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import decoder, expert_counts, layer_count, rotary_dim, tied
from everybyte.models.moe.deepseek import experts_layer
from everybyte.models.patterns import flags, kinds


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden, layers = c.integer("hidden_size"), layer_count(c)
    dense, moe = GatedMLP(hidden, c.integer("intermediate_size"), c.activation()), experts_layer(c)
    blocks = [Block(_attention(c, sliding), moe if routed else dense) for sliding, routed in zip(_sliding(c, layers), _routed(c, layers), strict=True)]
    return decoder(c, layers=blocks, tied=tied(c, default=False), experts=expert_counts(c))


def _attention(c: Config, sliding: bool) -> Attention:
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    if sliding:
        kv_heads = c.integer("swa_num_key_value_heads", default=2 * kv_heads)
    return Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=c.flag("attention_bias", default=False)),
        rotary=Rotary(dim=rotary_dim(c, head_dim, 0.334)),
        scores=Scores(sinks=c.flag("add_swa_attention_sink_bias", default=True) and sliding, wide_softmax=False, shifted=True),
        v_dim=c.integer("v_head_dim", default=head_dim),
        window=_window(c) if sliding else 0,
        dropout=c.number("attention_dropout"),
    )


def _sliding(c: Config, layers: int) -> tuple[bool, ...]:
    """Windows by `hybrid_layer_pattern` or `layer_types`; by default the first and every sixth layer see everything."""
    pattern = flags(c, "hybrid_layer_pattern", layers)
    if pattern:
        return pattern
    default = ["full_attention" if index == 0 or (index + 1) % 6 == 0 else "sliding_attention" for index in range(layers)]
    return tuple(kind == "sliding_attention" for kind in kinds(c, "layer_types", layers, ("full_attention", "sliding_attention"), default))


def _routed(c: Config, layers: int) -> tuple[bool, ...]:
    """Experts in all layers but the first, or as `moe_layer_freq` or `mlp_layer_types` says."""
    default = ["dense", *["sparse"] * (layers - 1)]
    return flags(c, "moe_layer_freq", layers) or tuple(kind == "sparse" for kind in kinds(c, "mlp_layer_types", layers, ("dense", "sparse"), default))


def _window(c: Config) -> int:
    """Tokens that a query sees: `sliding_window_size` counts those before it, transformers' own field itself too."""
    if c.has("sliding_window_size"):
        return c.integer("sliding_window_size") + 1
    return c.integer("sliding_window", default=129)
