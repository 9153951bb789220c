"""Granite 4: Mamba-2 layers with attention in some, experts beside a shared feed-forward layer (modeling_granitemoehybrid.py)."""

from __future__ import annotations

from typing import Any

from everybyte.basics.errors import BadInput
from everybyte.layers.attention.grouped import Attention, Projections, Rotary
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.routed import Experts, Gate
from everybyte.layers.experts.router import Router
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import Network
from everybyte.layers.recurrent.mamba2 import Mamba2
from everybyte.models.config import Config
from everybyte.models.decoder import decoder, layer_count, tied
from everybyte.models.patterns import kinds

KINDS = ("mamba", "attention", "linear_attention", "full_attention")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden, layers = c.integer("hidden_size"), layer_count(c)
    attention, mamba, mlp = _attention(c), mamba2(c), _feed_forward(c)
    key = "layers_block_type" if c.has("layers_block_type") else "layer_types"

    def block(kind: str) -> Block:
        attends = kind in {"attention", "full_attention"}
        mixer, name = (attention, "self_attn") if attends else (mamba, "mamba")
        return Block(mixer, mlp, mixer_name=name, mlp_name="" if isinstance(mlp, MoE) else "shared_mlp", scaled=True, inline=True)

    blocks = [block(kind) for kind in kinds(c, key, layers, KINDS, ["mamba"] * layers)]
    shared = tied(c, default=False)
    head = Head(hidden, c.integer("vocab_size"), shared, scaled=True)
    counts = (mlp.router.experts, mlp.router.top_k) if isinstance(mlp, MoE) else (0, 0)
    return decoder(c, layers=blocks, tied=shared, scaled=True, head=head, experts=counts)


def _attention(c: Config) -> Attention:
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    bias = c.flag("attention_bias", default=False)
    rope = c.fields.get("position_embedding_type") == "rope"
    return Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=bias, out_bias=bias),
        rotary=Rotary() if rope else None,
        dropout=c.number("attention_dropout"),
    )


def mamba2(c: Config) -> Mamba2:
    """The Mamba-2 layer under the names that Granite and Bamba give its sizes."""
    hidden = c.integer("hidden_size")
    inner, heads = c.integer("mamba_expand", default=2) * hidden, c.integer("mamba_n_heads", default=128)
    if inner % heads:
        raise BadInput(f"{c.path}.mamba_n_heads", f"must divide mamba_expand·hidden_size ({inner}), and {heads} does not")
    bias = c.flag("mamba_proj_bias", default=False)
    return Mamba2(
        hidden,
        heads,
        inner // heads,
        c.integer("mamba_n_groups", default=1),
        c.integer("mamba_d_state", default=256),
        c.integer("mamba_d_conv", default=4),
        c.integer("mamba_chunk_size", default=256),
        bias=bias,
        conv_bias=c.flag("mamba_conv_bias", default=True),
        out_bias=bias,
    )


def _feed_forward(c: Config) -> Any:
    """The shared layer alone, or beside it the routed experts."""
    hidden, act = c.integer("hidden_size"), c.activation()
    shared = GatedMLP(
        hidden, c.integer("shared_intermediate_size", default=1024), act, fused_gate="input_linear", names=("", "", "output_linear"), letter="f_s"
    )
    experts, top_k = c.integer("num_local_experts", default=8, least=0), c.integer("num_experts_per_tok", default=2, least=0)
    if not experts:
        return shared
    router = Router(experts, top_k, leaf="block_sparse_moe.router", score="chosen-softmax", narrow=True)
    routed = Experts(hidden, c.integer("intermediate_size"), experts, top_k, Gate(act))
    return MoE(hidden, router, routed, shared, shared_name="shared_mlp", experts_name="block_sparse_moe.experts")
