"""Normalisation layers."""

from __future__ import annotations

from everybyte.basics.dtypes import FP32
from everybyte.layers import ops
from everybyte.layers.tape import Tape, Value


def rms_norm(t: Tape, x: Value, leaf: str, *, style: str = "llama") -> Value:
    """RMSNorm over the last dimension, weight of that size.

    `llama`: x̂ is cast back before the product with the weight (modeling_llama.py); `gemma`: the product (with 1 + weight) stays in fp32 and the
    result is cast (modeling_gemma.py); `plain`: no weight; `t5`: the input itself, not its fp32 copy, is multiplied (modeling_t5.py T5LayerNorm).
    """
    with t.scope(leaf):
        weight = None if style == "plain" else t.parameter("weight", (x.dims[-1],), dtype=t.setup.norm_weights)
        if t.setup.kernels.norm == "fused" and weight is not None:
            return _fused(t, x, weight)
        wide = ops.cast(t, x, FP32)
        squares = ops.mean(t, ops.power(t, wide), x.dims[:-1])
        rate = ops.unary(t, "rsqrt", ops.unary(t, "add", squares, keeps="nothing"), keeps="output")
        normal = ops.mul(t, x if style == "t5" else wide, rate)
        if style == "gemma" and weight is not None:
            shifted = ops.unary(t, "add", ops.cast(t, weight, FP32), keeps="nothing")
            return ops.cast(t, ops.mul(t, normal, shifted), x.dtype)
        normal = ops.cast(t, normal, weight.dtype if style == "t5" and weight is not None else x.dtype)
        return normal if weight is None else ops.mul(t, weight, normal)


def _fused(t: Tape, x: Value, weight: Value) -> Value:
    """One kernel: keeps its input and one fp32 statistic a row (Liger, Unsloth/foak, Apex, torch.rms_norm)."""
    out = t.new("rms_norm", x.dims, x.dtype, x.grad or weight.grad)
    rate = t.new("rstd", x.dims[:-1], FP32, False)
    t.step("rms_norm", (x, weight), (out, rate), saved=(x, rate))
    return out


def layer_norm(t: Tape, x: Value, leaf: str, *, bias: bool = True, affine: bool = True) -> Value:
    """LayerNorm over the last dimension."""
    with t.scope(leaf):
        width = (x.dims[-1],)
        weight = t.parameter("weight", width, dtype=t.setup.norm_weights) if affine else None
        return ops.layer_norm(t, x, weight, t.parameter("bias", width, dtype=t.setup.norm_weights) if affine and bias else None)
