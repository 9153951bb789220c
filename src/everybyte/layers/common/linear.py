"""Linear layers, with what may stand in or beside them: packed weights that are dequantised on use, and adapters."""

from __future__ import annotations

from everybyte.basics.dtypes import INT8, DType
from everybyte.layers.common.adapters import WRITERS, ia3_input
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Dim, Size
from everybyte.layers.recording.tape import Tape, Value


def linear(
    t: Tape,
    x: Value,
    leaf: str,
    out: Dim,
    *,
    bias: bool = False,
    count: int = 1,
    share: tuple[int, int] = (1, 1),
    apart: bool = False,
    dtype: DType | None = None,
) -> Value:
    """The linear layer called `leaf` of the current module: x (..., in) -> (..., out).

    `count` equal layers stand behind it, `share` as in Parameter. `apart`: the bias is added on its own, in its own type (Falcon).
    `dtype`: type of the weight where it is not that of the others.
    """
    if bias and apart:
        y = linear(t, x, leaf, out, count=count, share=share)
        with t.scope(leaf):
            return ops.add(t, y, t.parameter("bias", (out,), count=count, share=share))
    place = t.name(leaf)
    outer, t.path = t.path, place
    adapter = t.setup.adapter
    packed = t.setup.packed
    covered = adapter is not None and adapter.kind in WRITERS and adapter.covers(place)
    if covered and adapter is not None and adapter.kind == "ia3" and adapter.feeds_forward(place):
        x, covered = ia3_input(t, x, adapter), False
    if packed is not None and packed.covers(place):
        y = _packed(t, x, out, bias=bias, count=count, share=share)
    else:
        weight = t.parameter("weight", (out, x.dims[-1]), count=count, share=share, dtype=dtype)
        y = ops.linear(t, x, weight, t.parameter("bias", (out,), count=count, share=share) if bias else None, out)
    if covered and adapter is not None:
        y = WRITERS[adapter.kind](t, x, y, adapter, out, count)
    t.path = outer
    return y


def _packed(t: Tape, x: Value, out: Dim, *, bias: bool, count: int, share: tuple[int, int]) -> Value:
    """A frozen packed weight: dequantised to the type of x for the product, in forward and again in backward
    (bitsandbytes autograd/_functions.py MatMul4Bit; auto-gptq and triton kernels do the same). The packed weight itself is kept by reference."""
    weight = t.parameter("weight", (out, x.dims[-1]), count=count, packed=True, share=share)
    compute = t.setup.compute or t.setup.weights
    arrived = x
    x = ops.cast(t, x, compute)
    y = t.new("linear", (*x.dims[:-1], out), compute, x.grad)
    computes = t.setup.packed is not None and t.setup.packed.computes
    # a kernel that multiplies packed numbers brings its input to one byte a number first
    dense = Size.of(x.dims, INT8) if computes else Size.of((out, x.dims[-1]), compute)
    kept = [x] if t.setup.kernels.holds_linear_inputs else []
    t.step("matmul_4bit", (x, weight), (y,), saved=kept, scratch=dense, back_scratch=dense)
    if bias:
        y = ops.add_(t, y, t.parameter("bias", (out,), count=count))
    # Linear4bit.forward returns its result in the type of its input
    return ops.cast(t, y, arrived.dtype)
