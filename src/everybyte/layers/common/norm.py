"""Normalisation layers."""

from __future__ import annotations

from everybyte.basics.dtypes import FP32
from everybyte.basics.record import Record
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Dims
from everybyte.layers.recording.tape import Tape, Value


class Norm(Record, frozen=True):
    """Which normalisation a block uses."""

    kind: str = "rms"
    """`rms`, `layer`."""
    style: str = "llama"
    """How it is written: for `rms` see rms_norm; of `layer`, `wide` runs one kernel in fp32 (OLMo), `written` writes mean and variance out in
    fp32 (Cohere), anything else is `F.layer_norm` in the type of its input."""
    bias: bool = True
    affine: bool = True

    def forward(self, t: Tape, x: Value, leaf: str, weight: Dims = ()) -> Value:
        """x (..., h) -> (..., h). `weight`: shape of the weight where it is not (h)."""
        if self.kind == "rms":
            return rms_norm(t, x, leaf, style=self.style)
        if self.style == "written":
            return written_layer_norm(t, x, leaf, weight or (x.dims[-1],))
        return layer_norm(t, x, leaf, bias=self.bias, affine=self.affine, wide=self.style == "wide")


def rms_norm(t: Tape, x: Value, leaf: str, *, style: str = "llama") -> Value:
    """RMSNorm over the last dimension, weight of that size.

    `llama`: x̂ is cast back before the product with the weight (modeling_llama.py); `wide`: the product stays in fp32 and the result is cast
    (modeling_olmo2.py); `cast`: the same with an fp32 copy of the weight (modeling_nemotron_h.py); `gemma`: the same with 1 + weight
    (modeling_gemma.py); `gemma4`: as `cast`, with the root as a power (modeling_gemma4.py); `plain`, `gemma4-plain`: no weight; `t5`: not the fp32
    copy but the input itself is multiplied (modeling_t5.py); `torch`: torch.nn.RMSNorm, one kernel on CUDA where input and weight have one
    type, else as `wide`.
    """
    with t.scope(leaf, x):
        weight = None if style.endswith("plain") else t.parameter("weight", (x.dims[-1],), dtype=t.setup.norm_weights)
        one_kernel = style == "torch" and t.setup.kernels.device == "cuda" and weight is not None and weight.dtype == x.dtype
        if weight is not None and (t.setup.kernels.norm == "fused" or one_kernel):
            return _fused(t, x, weight)
        wide = ops.cast(t, x, FP32)
        variance = ops.mean(t, ops.power(t, wide), x.dims[:-1])
        squares = ops.unary(t, "add", variance, keeps="nothing")
        rate = ops.unary(t, "pow", squares) if style.startswith("gemma4") else ops.unary(t, "rsqrt", squares, keeps="output")
        normal = ops.mul(t, x if style == "t5" else wide, rate)
        if not style.startswith("gemma"):
            t.hold(variance, normal)
        if style == "gemma" and weight is not None:
            shifted = ops.unary(t, "add", ops.cast(t, weight, FP32), keeps="nothing")
            return ops.cast(t, ops.mul(t, normal, shifted), x.dtype)
        if style in {"wide", "cast", "torch", "gemma4"} and weight is not None:
            return ops.cast(t, ops.mul(t, ops.cast(t, weight, FP32) if style in {"cast", "gemma4"} else weight, normal), x.dtype)
        normal = ops.cast(t, normal, weight.dtype if style == "t5" and weight is not None else x.dtype)
        return normal if weight is None else ops.mul(t, weight, normal)


def _fused(t: Tape, x: Value, weight: Value) -> Value:
    """One kernel: keeps its input and one fp32 statistic a row (Liger, Unsloth/foak, Apex, torch.rms_norm)."""
    out = t.new("rms_norm", x.dims, x.dtype, x.grad or weight.grad)
    rate = t.new("rstd", x.dims[:-1], FP32, False)
    t.step("rms_norm", (x, weight), (out, rate), saved=(x, rate))
    return out


def layer_norm(t: Tape, x: Value, leaf: str, *, bias: bool = True, affine: bool = True, wide: bool = False) -> Value:
    """LayerNorm over the last dimension; `wide`: its input is turned into fp32 and its result back."""
    with t.scope(leaf, x):
        width = (x.dims[-1],)
        weight = t.parameter("weight", width, dtype=t.setup.norm_weights) if affine else None
        shift = t.parameter("bias", width, dtype=t.setup.norm_weights) if affine and bias else None
        out = ops.layer_norm(t, ops.cast(t, x, FP32) if wide else x, weight, shift)
        return ops.cast(t, out, x.dtype) if wide else out


def written_layer_norm(t: Tape, x: Value, leaf: str, weight: Dims) -> Value:
    """LayerNorm without bias, written out in fp32 (modeling_cohere.py CohereLayerNorm): x - mean is worked out twice and kept twice."""
    with t.scope(leaf, x):
        scale = t.parameter("weight", weight, dtype=t.setup.norm_weights)
        wide = ops.cast(t, x, FP32)
        mean = ops.mean(t, wide, x.dims[:-1])
        variance = ops.mean(t, ops.power(t, ops.add(t, wide, mean)), x.dims[:-1])
        rate = ops.unary(t, "rsqrt", ops.unary(t, "add", variance, keeps="nothing"), keeps="output")
        normal = ops.mul(t, ops.add(t, wide, mean), rate)
        return ops.cast(t, ops.mul(t, ops.cast(t, scale, FP32), normal), x.dtype)
