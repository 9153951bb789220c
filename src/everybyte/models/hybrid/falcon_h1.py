"""Falcon-H1: Mamba-2 and attention side by side in every block, constants at every branch (modeling_falcon_h1.py)."""

from __future__ import annotations

from everybyte.basics.errors import BadInput
from everybyte.layers.attention.grouped import Attention, Projections
from everybyte.layers.blocks.mixer import ScaledMLP, TwinBlock
from everybyte.layers.common.norm import Norm
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import Network
from everybyte.layers.recurrent.mamba2 import GatedNorm, Mamba2
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, tied

PLACES = Places(norm="model.final_layernorm")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    bias = c.flag("attention_bias", default=False)
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=bias, out_bias=bias),
        dropout=c.number("attention_dropout"),
    )
    mlp = ScaledMLP(hidden, c.integer("intermediate_size"), c.activation(), bias=c.flag("mlp_bias", default=False))
    shared = tied(c, default=False)
    head = Head(hidden, c.integer("vocab_size"), shared, scaled=True)
    return decoder(c, TwinBlock(_mamba(c), attention, mlp, Norm()), tied=shared, scaled=True, places=PLACES, head=head)


def _mamba(c: Config) -> Mamba2:
    hidden, heads = c.integer("hidden_size"), c.integer("mamba_n_heads", default=128)
    inner = c.integer("mamba_d_ssm", default=c.integer("mamba_expand", default=2) * hidden)
    if inner % heads:
        raise BadInput(f"{c.path}.mamba_n_heads", f"must divide the inner width ({inner}), and {heads} does not")
    norm: GatedNorm = ""
    if c.flag("mamba_rms_norm", default=False):
        norm = "norm-first" if c.flag("mamba_norm_before_gate", default=True) else "gate-first"
    return Mamba2(
        hidden,
        heads,
        inner // heads,
        c.integer("mamba_n_groups", default=1),
        c.integer("mamba_d_state", default=256),
        c.integer("mamba_d_conv", default=4),
        c.integer("mamba_chunk_size", default=256),
        bias=c.flag("mamba_proj_bias", default=False),
        conv_bias=c.flag("mamba_conv_bias", default=True),
        out_bias=c.flag("projectors_bias", default=False),
        norm=norm,
        scaled=True,
    )
