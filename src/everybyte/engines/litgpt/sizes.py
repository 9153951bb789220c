"""The sizes of a network as LitGPT's Config holds them, read from the layers that a family file built."""

from __future__ import annotations

from typing import Any

from everybyte.basics.errors import Unsupported
from everybyte.basics.record import Record
from everybyte.layers.attention.grouped import Attention
from everybyte.layers.blocks.transformer import Block, ParallelBlock
from everybyte.layers.common.mlp import GatedMLP, PlainMLP
from everybyte.models.gpt.falcon import FalconAttention

PATH = "model"
KERNELS = {"gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh"}
"""Functions that transformers writes out and LitGPT calls as one kernel: F.gelu(approximate="tanh")."""


class Sizes(Record, frozen=True):
    """One block: litgpt/config.py Config."""

    hidden: int
    heads: int
    groups: int
    """`n_query_groups`: heads of keys and values."""
    head_size: int
    rotary: int
    """`rope_n_elem`: numbers of a head that turn."""
    qkv_bias: bool
    out_bias: bool
    ffn: int
    activation: str
    gated: bool
    mlp_bias: bool
    norm: str
    """`rms` or `layer`."""
    unit_offset: bool
    """RMSNorm multiplies by 1 + weight (Gemma)."""
    parallel: bool
    shared_norm: bool
    post_norms: bool
    softcap: bool
    qk_norm: str = ""
    """`head`, `all` or empty."""
    window: int = 0


def sizes_of(layer: Any) -> Sizes:
    """The sizes of a block. Raises Unsupported for one that LitGPT's model cannot be."""
    if not isinstance(layer, Block | ParallelBlock):
        kind = type(layer).__name__
        raise Unsupported(PATH, f"a block of the kind {kind} is not supported for LitGPT yet; supported: decoders like Llama, Gemma, Phi, NeoX and Falcon")
    mlp = layer.mlp
    if not isinstance(mlp, GatedMLP | PlainMLP):
        raise Unsupported(PATH, f"feed-forward layers of the kind {type(mlp).__name__} (mixtures of experts among them) are not supported for LitGPT yet")
    parallel = isinstance(layer, ParallelBlock)
    post = isinstance(layer, Block) and any(layer.post)
    return Sizes(
        **_attention(layer.mixer),
        ffn=mlp.ffn,
        activation=KERNELS.get(mlp.activation, mlp.activation),
        gated=isinstance(mlp, GatedMLP),
        mlp_bias=mlp.bias,
        norm=layer.norm.kind,
        unit_offset=layer.norm.style == "gemma",
        parallel=parallel,
        shared_norm=parallel and len(layer.pre) == 1,
        post_norms=post,
    )


def _attention(mixer: Any) -> dict[str, Any]:
    if isinstance(mixer, FalconAttention) and not mixer.alibi:
        return {
            "hidden": mixer.hidden,
            "heads": mixer.heads,
            "groups": mixer.kv_heads,
            "head_size": mixer.head_dim,
            "rotary": mixer.head_dim,
            "qkv_bias": mixer.bias,
            "out_bias": mixer.bias,
            "softcap": False,
        }
    if not isinstance(mixer, Attention) or mixer.rotary is None:
        raise Unsupported(PATH, "LitGPT has rotary positions only: this model has none, learned ones or ALiBi in some layer")
    if mixer.scores.sinks or mixer.gate or mixer.v_dim not in (0, mixer.head_dim):
        raise Unsupported(PATH, "attention with sinks, gates or values of another width is not in LitGPT")
    return {
        "hidden": mixer.hidden,
        "heads": mixer.heads,
        "groups": mixer.kv_heads,
        "head_size": mixer.head_dim,
        "rotary": mixer.rotary.dim or mixer.head_dim,
        "qkv_bias": mixer.projections.qkv_bias,
        "out_bias": mixer.projections.out_bias,
        "softcap": mixer.scores.softcap,
        "qk_norm": mixer.qk_norm.over,
        "window": mixer.window,
    }
