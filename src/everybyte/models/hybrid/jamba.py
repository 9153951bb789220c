"""Jamba: Mamba layers with attention in every eighth, experts in every second (modeling_jamba.py)."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts, Gate
from everybyte.layers.experts.router import Router
from everybyte.layers.network import Network
from everybyte.layers.recurrent.mamba1 import Mamba1
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, expert_counts, layer_count, tied
from everybyte.models.hybrid.mamba import dt_rank

PLACES = Places(norm="model.final_layernorm")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden, ffn = c.integer("hidden_size"), c.integer("intermediate_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    experts, top_k = expert_counts(c)
    attention = Attention(hidden, heads, kv_heads, head_dim, rotary=None, dropout=c.number("attention_dropout"))
    mamba = Mamba1(
        hidden,
        c.integer("mamba_expand", default=2) * hidden,
        c.integer("mamba_d_state", default=16),
        c.integer("mamba_d_conv", default=4),
        dt_rank(c, "mamba_dt_rank"),
        bias=c.flag("mamba_proj_bias", default=False),
        conv_bias=c.flag("mamba_conv_bias", default=True),
        norms="weighted",
    )
    dense = GatedMLP(hidden, ffn, c.activation())
    router = Router(experts, top_k, leaf="router", normalize="", narrow=True)
    moe = MoE(hidden, router, Experts(hidden, ffn, experts, top_k, Gate(c.activation())))

    def block(attends: bool, routed: bool) -> Block:
        names = ("input_layernorm", "pre_ff_layernorm")
        mixer, name = (attention, "self_attn") if attends else (mamba, "mamba")
        return Block(mixer, moe if routed else dense, pre=names, mixer_name=name, mlp_name="feed_forward")

    attends = (c.integer("attn_layer_period", default=8), c.integer("attn_layer_offset", default=4, least=0))
    routes = (c.integer("expert_layer_period", default=2), c.integer("expert_layer_offset", default=1, least=0))
    layers = [block(index % attends[0] == attends[1], experts > 1 and index % routes[0] == routes[1]) for index in range(layer_count(c))]
    return decoder(c, layers=layers, tied=tied(c, default=False), places=PLACES, experts=(experts, top_k))
