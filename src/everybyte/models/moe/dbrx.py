"""DBRX: clipped joined projections, LayerNorm without bias, experts one after the other (modeling_dbrx.py)."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.norm import Norm
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts, Gate
from everybyte.layers.experts.router import Router
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, tied

NORM = Norm("layer", bias=False)
PLACES = Places("transformer.wte", "transformer.blocks", "transformer.norm_f")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden, heads = c.integer("d_model"), c.integer("n_heads")
    inner, ffn = c.part("attn_config"), c.part("ffn_config")
    experts, top_k = ffn.integer("moe_num_experts", default=4), ffn.integer("moe_top_k", default=1)
    attention = Attention(
        hidden,
        heads,
        inner.integer("kv_n_heads", default=heads),
        hidden // heads,
        projections=Projections(fused="Wqkv", split=True, clip=inner.has("clip_qkv"), names=("", "", "", "out_proj")),
        dropout=inner.number("attn_pdrop"),
    )
    gate = Gate(ffn.part("ffn_act_fn").activation("silu", "name"))
    routed = Experts(hidden, ffn.integer("ffn_hidden_size", default=3584), experts, top_k, gate, names=("w1", "v1", "w2"), looped="flat")
    moe = MoE(hidden, Router(experts, top_k, leaf="router.layer", score="softmax-own", normalize="p-norm"), routed, experts_name="experts.mlp")
    block = Block(
        attention,
        moe,
        NORM,
        pre=("norm_attn_norm.norm_1", "norm_attn_norm.norm_2"),
        mixer_name="norm_attn_norm.attn",
        mlp_name="ffn",
        dropout=c.number("resid_pdrop"),
    )
    return decoder(c, layers=[block] * c.integer("n_layers"), tied=tied(c, default=False), norm=NORM, places=PLACES, experts=(experts, top_k))
