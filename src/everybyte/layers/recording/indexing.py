"""Operations that choose and gather: top k, gather, rows by index, in-place division; what each keeps (derivatives.yaml)."""

from __future__ import annotations

from everybyte.basics.dtypes import INT64
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Dim, Dims
from everybyte.layers.recording.tape import Made, Tape, Value


def top_k(t: Tape, x: Value, k: Dim) -> tuple[Value, Value]:
    """The k largest of the last dimension and their positions: keeps the positions; the gradient is scattered into zeros."""
    dims = (*x.dims[:-1], k)
    values = t.new("topk", dims, x.dtype, x.grad)
    positions = t.new("topk positions", dims, INT64, False)
    t.step("topk", (x,), (values, positions), saved=(positions,))
    return values, positions


def gather(t: Tape, x: Value, positions: Value) -> Value:
    """`x.gather(-1, positions)`: keeps the positions."""
    out = t.new("gather", positions.dims, x.dtype, x.grad)
    t.step("gather", (x, positions), (out,), saved=(positions,))
    return out


def rows(t: Tape, x: Value, index: Value, dims: Dims) -> Value:
    """`x[index]`: keeps the index; the gradient is added up in zeros of the whole."""
    out = t.new("index", dims, x.dtype, x.grad)
    t.step("index", (x, index), (out,), saved=(index,))
    return out


def total(t: Tape, x: Value, dims: Dims) -> Value:
    """A sum over one dimension: keeps nothing; the gradient is a broadcast view."""
    out = t.new("sum", dims, x.dtype, x.grad)
    t.step("sum", (x,), (out,), made=[Made(x, None)])
    return out


def normalize_(t: Tape, x: Value, *, epsilon: bool = False) -> Value:
    """`x /= x.sum(-1, keepdim=True)`, with a small number added to the sum if `epsilon`: keeps the sum and, as x is written over, a copy of it."""
    divisor = total(t, x, x.dims[:-1])
    if epsilon:
        divisor = ops.unary(t, "add", divisor, keeps="nothing")
    before = t.new("copy", x.dims, x.dtype, False)
    out = Value(x.storage, x.dims, x.dtype, x.grad)
    t.step("div_", (x, divisor), (out, before), saved=(divisor, before))
    return out


def integers(t: Tape, what: str, inputs: tuple[Value, ...], dims: Dims) -> Value:
    """Positions worked out from other positions, outside autograd."""
    out = t.new(what, dims, INT64, False)
    t.step(what, inputs, (out,))
    return out
