"""Llama 4, text part: chunked attention with positions and full attention without, experts in every or every second layer (modeling_llama4.py)."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections, QkNorm, Rotary, Scores
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.experts.dense_routing import DenselyRouted
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, layer_count, tied
from everybyte.models.patterns import flags


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    return language_model(c.part("text_config"))


def language_model(c: Config, places: Places = Places()) -> Network:  # noqa: B008 - a constant
    """The decoder, under the names that it has alone or inside the vision-language model."""
    hidden, layers = c.integer("hidden_size"), layer_count(c)
    experts, top_k = c.integer("num_local_experts", default=16), c.integer("num_experts_per_tok", default=1)
    ffn = c.integer("intermediate_size")
    dense = GatedMLP(hidden, c.integer("intermediate_size_mlp", default=2 * ffn), c.activation())
    moe = DenselyRouted(hidden, ffn, experts, top_k, c.activation())
    step = c.integer("interleave_moe_layer_step", default=1)
    routed = c.integers("moe_layers", tuple(range(step - 1, layers, step)))
    blocks = [
        Block(_attention(c, turned), moe if index in routed else dense, mlp_name="feed_forward", holds=("out 0",))
        for index, turned in enumerate(_turned(c, layers))
    ]
    return decoder(c, layers=blocks, tied=tied(c, default=False), places=places, experts=(experts, top_k))


def _turned(c: Config, layers: int) -> tuple[bool, ...]:
    """Layers with rotary positions: `no_rope_layers` (1 means that it has them), by default all but every fourth."""
    interval = c.integer("no_rope_layer_interval", default=4)
    return flags(c, "no_rope_layers", layers) or tuple((index + 1) % interval != 0 for index in range(layers))


def _attention(c: Config, turned: bool) -> Attention:
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    bias = c.flag("attention_bias", default=False)
    normed = turned and c.flag("use_qk_norm", default=True)
    return Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=bias, out_bias=bias),
        rotary=Rotary(complex=True) if turned else None,
        qk_norm=QkNorm(over="head" if normed else "", style="plain", late=True),
        scores=Scores(temperature="fp32" if not turned and c.flag("attn_temperature_tuning", default=True) else "", wide_softmax=False),
        window=c.integer("attention_chunk_size", default=8192) if turned else 0,
        dropout=c.number("attention_dropout"),
    )
