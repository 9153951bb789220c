"""Mamba, Mamba-2 and Falcon Mamba: one state-space layer a block (modeling_mamba.py, modeling_mamba2.py, modeling_falcon_mamba.py)."""

from __future__ import annotations

from everybyte.basics.units import ceil_div
from everybyte.layers.blocks.mixer import MixerBlock
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Network
from everybyte.layers.recurrent.mamba1 import Mamba1
from everybyte.layers.recurrent.mamba2 import Mamba2
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, tied

PLACES = Places("backbone.embeddings", "backbone.layers", "backbone.norm_f")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    newer = c.architecture == "Mamba2ForCausalLM"
    block = MixerBlock(_second(c) if newer else _first(c), Norm(), wide=c.flag("residual_in_fp32", default=True))
    return decoder(c, block, tied=tied(c, default=not newer), places=PLACES)


def _first(c: Config) -> Mamba1:
    hidden = c.integer("hidden_size")
    return Mamba1(
        hidden,
        c.integer("intermediate_size", default=c.integer("expand", default=2) * hidden),
        c.integer("state_size", default=16),
        c.integer("conv_kernel", default=4),
        dt_rank(c, "time_step_rank"),
        bias=c.flag("use_bias", default=False),
        conv_bias=c.flag("use_conv_bias", default=True),
        norms="plain" if c.architecture == "FalconMambaForCausalLM" else "",
    )


def dt_rank(c: Config, key: str) -> int:
    """Rank of the time step: a number, or `auto` for h/16 rounded up."""
    if c.fields.get(key, "auto") == "auto":
        return ceil_div(c.integer("hidden_size"), 16)
    return c.integer(key)


def _second(c: Config) -> Mamba2:
    hidden = c.integer("hidden_size")
    bias = c.flag("use_bias", default=False)
    return Mamba2(
        hidden,
        c.integer("num_heads", default=128),
        c.integer("head_dim", default=64),
        c.integer("n_groups", default=8),
        c.integer("state_size", default=128),
        c.integer("conv_kernel", default=4),
        c.integer("chunk_size", default=256),
        bias=bias,
        conv_bias=c.flag("use_conv_bias", default=True),
        out_bias=bias,
    )
