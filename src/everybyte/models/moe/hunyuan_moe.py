"""Hunyuan MoE (A13B): norms on turned heads, a shared expert of the same width as the routed ones (modeling_hunyuan_v1_moe.py)."""

from __future__ import annotations

from everybyte.basics.errors import Unsupported
from everybyte.layers.attention.grouped import Attention, Projections, QkNorm
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts, Gate
from everybyte.layers.experts.router import Router
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import decoder, expert_counts, tied

PER_LAYER = ("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    c = Config({key: _uniform(c, key) if key in PER_LAYER else value for key, value in c.fields.items()}, c.path, c.name)
    hidden, ffn = c.integer("hidden_size"), c.integer("intermediate_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    bias = c.flag("attention_bias", default=False)
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=bias, out_bias=bias),
        qk_norm=QkNorm(over="head", late=True, names=("query_layernorm", "key_layernorm")),
        dropout=c.number("attention_dropout"),
    )
    experts, top_k = expert_counts(c)
    router = Router(experts, top_k, leaf="gate.wg", narrow=True)
    routed = Experts(hidden, ffn, experts, top_k, Gate(c.activation()))
    moe = MoE(hidden, router, routed, GatedMLP(hidden, ffn, c.activation()), shared_name="shared_mlp", shared_first=True)
    return decoder(c, Block(attention, moe), tied=tied(c, default=False), experts=(experts, top_k))


def _uniform(c: Config, key: str) -> object:
    """A number, or a list of equal numbers for every layer."""
    value = c.fields[key]
    if not isinstance(value, list):
        return value
    if len(set(map(str, value))) != 1:
        raise Unsupported(f"{c.path}.{key}", "different values in different layers are not supported; transformers' own class reads one width for all")
    return value[0]
