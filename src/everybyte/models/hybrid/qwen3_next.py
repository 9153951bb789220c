"""Qwen3-Next and the text part of Qwen3.5, dense and with experts: gated delta nets with gated attention in every fourth layer
(modeling_qwen3_next.py, modeling_qwen3_5.py, modeling_qwen3_5_moe.py)."""

from __future__ import annotations

from typing import Any

from everybyte.layers.attention.grouped import Attention, Projections, QkNorm, Rotary
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Network
from everybyte.layers.recurrent.delta_net import GatedDeltaNet
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, expert_counts, layer_count, rotary_dim, tied
from everybyte.models.moe.qwen_moe import experts_layer, routed_layers
from everybyte.models.patterns import kinds

NORM = Norm(style="gemma")
KINDS = ("linear_attention", "full_attention")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    return language_model(c.part("text_config"))


def language_model(c: Config, places: Places = Places()) -> Network:  # noqa: B008 - a constant
    """The decoder, under the names that it has alone or inside the vision-language model."""
    layers = layer_count(c)
    interval = c.integer("full_attention_interval", default=4)
    default = ["linear_attention" if (index + 1) % interval else "full_attention" for index in range(layers)]
    attention, linear, mlps = _attention(c), _delta_net(c), _feed_forward(c)

    def block(kind: str, mlp: Any) -> Block:
        mixer, name = (attention, "self_attn") if kind == "full_attention" else (linear, "linear_attn")
        return Block(mixer, mlp, NORM, mixer_name=name)

    blocks = [block(kind, mlp) for kind, mlp in zip(kinds(c, "layer_types", layers, KINDS, default), mlps, strict=True)]
    counts = expert_counts(c) if _has_experts(c) else (0, 0)
    return decoder(c, layers=blocks, tied=tied(c, default=False), norm=NORM, places=places, experts=counts)


def _attention(c: Config) -> Attention:
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    bias = c.flag("attention_bias", default=False)
    return Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=bias, out_bias=bias),
        rotary=Rotary(dim=rotary_dim(c, head_dim, 0.25)),
        qk_norm=QkNorm(over="head", style="gemma"),
        gate="joined",
        dropout=c.number("attention_dropout"),
    )


def _delta_net(c: Config) -> GatedDeltaNet:
    return GatedDeltaNet(
        c.integer("hidden_size"),
        c.integer("linear_num_key_heads", default=16),
        c.integer("linear_num_value_heads", default=32),
        c.integer("linear_key_head_dim", default=128),
        c.integer("linear_value_head_dim", default=128),
        c.integer("linear_conv_kernel_dim", default=4),
        joined=c.model_type == "qwen3_next",
    )


def _has_experts(c: Config) -> bool:
    return any(c.has(key) for key in ("num_experts", "num_local_experts"))


def _feed_forward(c: Config) -> list[Any]:
    """Of every layer: experts with a shared one, or a dense layer."""
    if not _has_experts(c):
        return [GatedMLP(c.integer("hidden_size"), c.integer("intermediate_size"), c.activation())] * layer_count(c)
    moe = experts_layer(c, shared=True, normalize=True)
    routed = routed_layers(c)
    dense = None if all(routed) else GatedMLP(c.integer("hidden_size"), c.integer("intermediate_size"), c.activation())
    return [moe if one else dense for one in routed]
