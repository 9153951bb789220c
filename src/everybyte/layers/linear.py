"""Linear layers, with what may stand in or beside them: packed weights that are dequantised on use, and adapters."""

from __future__ import annotations

from everybyte.layers import ops
from everybyte.layers.setup import Adapter
from everybyte.layers.size import Dim, Size
from everybyte.layers.tape import Made, Tape, Value


def linear(t: Tape, x: Value, leaf: str, out: Dim, *, bias: bool = False, count: int = 1, share: tuple[int, int] = (1, 1), apart: bool = False) -> Value:
    """The linear layer called `leaf` of the current module: x (..., in) -> (..., out).

    `count` equal layers stand behind it, `share` as in Parameter. `apart`: the bias is added on its own, in its own type (Falcon).
    """
    if bias and apart:
        y = linear(t, x, leaf, out, count=count, share=share)
        with t.scope(leaf):
            return ops.add(t, y, t.parameter("bias", (out,), count=count, share=share))
    place = t.name(leaf)
    outer, t.path = t.path, place
    adapter = t.setup.adapter
    packed = t.setup.packed
    covered = adapter is not None and adapter.covers(place)
    if packed is not None and packed.covers(place):
        y = _packed(t, x, out, bias=bias, count=count, share=share)
    else:
        weight = t.parameter("weight", (out, x.dims[-1]), count=count, share=share)
        y = ops.linear(t, x, weight, t.parameter("bias", (out,), count=count, share=share) if bias else None, out)
    if covered and adapter is not None and adapter.kind in LOW_RANK:
        y = _low_rank(t, x, y, adapter, out, count)
    t.path = outer
    return y


LOW_RANK = ("lora", "rslora", "dora", "adalora", "qlora")
"""Adapter kinds that add B(A(dropout(x))) to a linear layer's result."""


def _packed(t: Tape, x: Value, out: Dim, *, bias: bool, count: int, share: tuple[int, int]) -> Value:
    """A frozen packed weight: dequantised to the type of x for the product, in forward and again in backward
    (bitsandbytes autograd/_functions.py MatMul4Bit; auto-gptq and triton kernels do the same). The packed weight itself is kept by reference."""
    weight = t.parameter("weight", (out, x.dims[-1]), count=count, packed=True, share=share)
    compute = t.setup.compute or t.setup.weights
    arrived = x
    x = ops.cast(t, x, compute)
    y = t.new("linear", (*x.dims[:-1], out), compute, x.grad)
    dense = Size.of((out, x.dims[-1]), compute)
    kept = [x] if t.setup.kernels.holds_linear_inputs else []
    t.step("matmul_4bit", (x, weight), (y,), saved=kept, scratch=dense, back_scratch=dense)
    if bias:
        y = ops.add_(t, y, t.parameter("bias", (out,), count=count))
    # Linear4bit.forward returns its result in the type of its input
    return ops.cast(t, y, arrived.dtype)


def _low_rank(t: Tape, x: Value, y: Value, adapter: Adapter, out: Dim, count: int) -> Value:
    """`result + B(A(dropout(x)))·scale` as peft writes it (peft/tuners/lora/layer.py Linear.forward)."""
    rank = Dim("q", adapter.rank)
    down = t.parameter("lora_A.weight", (rank, x.dims[-1]), count=count, dtype=adapter.dtype, adapter=True)
    up = t.parameter("lora_B.weight", (out, rank), count=count, dtype=adapter.dtype, adapter=True)
    if t.setup.kernels.lora == "fused":
        return _fused_low_rank(t, x, y, adapter, (down, up), rank)
    low = ops.cast(t, x, adapter.dtype)
    low = ops.dropout(t, low, adapter.dropout)
    low = ops.linear(t, low, down, None, rank)
    delta = ops.scale(t, ops.linear(t, low, up, None, out))
    summed = ops.add(t, y, delta)
    return ops.cast(t, summed, y.dtype)


def _fused_low_rank(t: Tape, x: Value, y: Value, adapter: Adapter, pair: tuple[Value, Value], rank: Dim) -> Value:
    """One autograd function for base and adapter: keeps x, and its dropped copy if there is dropout; A and B run in the type of x."""
    down, up = pair
    dropped = t.new("dropped input", x.dims, x.dtype, False) if adapter.dropout else x
    made = [Made(x, Size.of(x.dims, x.dtype)), Made(y, None), *(Made(w, Size.of(w.dims, w.dtype)) for w in pair)]
    result = Value(y.storage, y.dims, y.dtype, grad=t.setup.grad)
    t.step("lora", (x, y, down, up, dropped), (result,) if dropped is x else (result, dropped), saved=(x, dropped), made=made,
           scratch=Size.of((*x.dims[:-1], rank), x.dtype), back_scratch=Size.of((*x.dims[:-1], rank), x.dtype))  # fmt: skip
    return result
