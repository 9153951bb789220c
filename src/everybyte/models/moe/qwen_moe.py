"""Qwen 1.5/2 MoE and Qwen 3 MoE (modeling_qwen2_moe.py, modeling_qwen3_moe.py)."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections, QkNorm
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts, Gate
from everybyte.layers.experts.router import Router
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import decoder, expert_counts, tied, window
from everybyte.models.patterns import kinds

ATTENTION = ("full_attention", "sliding_attention")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden, layers = c.integer("hidden_size"), c.integer("num_hidden_layers")
    older = c.architecture.startswith("Qwen2")
    dense = GatedMLP(hidden, c.integer("intermediate_size"), c.activation())
    moe = experts_layer(c, shared=older)
    windows = [window(c, 4096) if kind == "sliding_attention" else 0 for kind in _kinds(c, layers)]
    blocks = [Block(attention(c, older, seen), moe if routed else dense) for seen, routed in zip(windows, routed_layers(c), strict=True)]
    return decoder(c, layers=blocks, tied=tied(c, default=False), experts=expert_counts(c))


def attention(c: Config, older: bool, seen: int) -> Attention:
    """Qwen 2: biases on q, k, v; Qwen 3: a norm over each head."""
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    bias = c.flag("qkv_bias", default=True) if older else c.flag("attention_bias", default=False)
    return Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=bias, out_bias=bias and not older),
        qk_norm=QkNorm() if older else QkNorm(over="head"),
        window=seen,
        dropout=c.number("attention_dropout"),
    )


def experts_layer(c: Config, *, shared: bool, normalize: bool = False) -> MoE:
    """Softmax over all experts, the top k, and in most of the family a shared expert behind a sigmoid gate. `normalize`: the family's default
    of `norm_topk_prob`."""
    hidden, (experts, top_k) = c.integer("hidden_size"), expert_counts(c)
    normalize = c.flag("norm_topk_prob", normalize)
    return MoE(
        hidden,
        Router(experts, top_k, normalize="in-place" if normalize else "", narrow=True),
        Experts(hidden, c.integer("moe_intermediate_size"), experts, top_k, Gate(c.activation())),
        GatedMLP(hidden, c.integer("shared_expert_intermediate_size"), c.activation()) if shared else None,
        shared_name="shared_expert",
        shared_first=True,
        shared_gate="shared_expert_gate" if shared else "",
    )


def routed_layers(c: Config) -> list[bool]:
    """Which layers have experts: every `decoder_sparse_step`-th, but those in `mlp_only_layers`."""
    step, dense = c.integer("decoder_sparse_step", default=1), c.integers("mlp_only_layers")
    return [index not in dense and (index + 1) % step == 0 for index in range(c.integer("num_hidden_layers"))]


def _kinds(c: Config, layers: int) -> tuple[str, ...]:
    """Windows start at layer `max_window_layers` (configuration_qwen2_moe.py); Qwen 3 has one for all layers or none."""
    first = 0 if c.architecture.startswith("Qwen3") else c.integer("max_window_layers", default=28, least=0)
    used = c.flag("use_sliding_window", default=False)
    default = ["sliding_attention" if used and index >= first else "full_attention" for index in range(layers)]
    return kinds(c, "layer_types", layers, ATTENTION, default)
