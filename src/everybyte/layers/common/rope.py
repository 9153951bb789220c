"""Rotary positions as HF writes them: x·cos + rotate_half(x)·sin. cos and sin are made once for all layers, so nothing is kept for backward."""

from __future__ import annotations

from everybyte.basics.dtypes import FP32, DType
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import QUERIES, Dim, Dims, Size
from everybyte.layers.recording.tape import Tape, Value

Tables = tuple[Value, Value]
"""cos and sin."""


def rotary(t: Tape, x: Value, *, wide: bool = False, tables: Tables | None = None) -> Value:
    """All of every head turns. `wide`: x is turned into fp32 and the result back (diffusers)."""
    if t.setup.kernels.rope == "fused":
        return ops.unary(t, "rope", x, keeps="nothing")
    if t.setup.kernels.rope == "pairs":
        return _turn_pairs(t, x)
    if wide:
        return ops.cast(t, _turn(t, ops.cast(t, x, FP32), FP32, tables), x.dtype)
    return _turn(t, x, table_dtype(t, x), tables)


def partial_rotary(
    t: Tape, x: Value, heads: Dim, head_dim: int, turned: int, *, by_token: bool = False, tables: Tables | None = None, inline: bool = False
) -> Value:
    """Only the first `turned` numbers of every head turn; the rest is joined to them again (NeoX, Phi, GLM), even when nothing is left over.

    The result has its heads one after another, unless they are joined side by side in every token (`by_token`, GPT-J). `inline`: x and the turned
    part live until the attention returns.
    """
    if t.setup.kernels.rope == "fused":
        return ops.unary(t, "rope", x, keeps="nothing")
    rows: Dims = (*x.dims[:-1], heads)
    first = ops.narrow(t, x, (*rows, Dim("d_r", turned)))
    rest = ops.narrow(t, x, (*rows, Dim("d_p", head_dim - turned)))
    first = _turn(t, first, table_dtype(t, x), tables)
    if inline:
        t.hold(x, first)
    out = ops.cat(t, (first, rest), x.dims)
    out.storage.head_major = not by_token
    return out


def stretched(t: Tape, width: int, dtype: DType) -> Tables:
    """cos and sin that a layer stretches for itself, which its products keep (GLM, GPT-J)."""
    pair = t.new("cos", (QUERIES, Dim("d_r", width)), dtype, False), t.new("sin", (QUERIES, Dim("d_r", width)), dtype, False)
    t.step("repeat_interleave", (), pair)
    return pair


def table_dtype(t: Tape, x: Value) -> DType:
    """Type of cos and sin, that of the hidden states: fp32 under autocast, which lifts q and k to fp32."""
    return FP32 if t.setup.compute is not None and t.setup.weights == FP32 else x.dtype


def _turn(t: Tape, x: Value, table: DType, tables: Tables | None = None) -> Value:
    cos, sin = tables or (None, None)
    left = _times_table(t, x, table, cos)
    right = _times_table(t, _rotate_half(t, x), table, sin)
    return ops.add(t, left, right)


def _turn_pairs(t: Tape, x: Value) -> Value:
    """x.float() in pairs: two differences of products, stacked, back in the type of x (torchtune modules/position_embeddings.py)."""
    wide = ops.cast(t, x, FP32)
    out = t.new("stack", x.dims, FP32, x.grad)
    whole = Size.of(x.dims, FP32)
    t.step("stack", (wide,), (out,), scratch=whole, back_scratch=whole)
    return ops.cast(t, out, x.dtype)


def _rotate_half(t: Tape, x: Value) -> Value:
    """`cat((-x2, x1))`: the negated half is a tensor of its own. Backward negates one half and puts each into zeros of the whole."""
    out = t.new("rotate_half", x.dims, x.dtype, x.grad)
    out.storage.head_major = x.storage.head_major
    half = Size.of((*x.dims[:-1], Dim(f"{x.dims[-1].letter}/2", max(x.dims[-1].size // 2, 1))), x.dtype)
    t.step("rotate_half", (x,), (out,), scratch=half, back_scratch=Size.of(x.dims, x.dtype))
    return out


def _times_table(t: Tape, x: Value, dtype: DType, table: Value | None) -> Value:
    out = t.new("mul", x.dims, FP32 if FP32 in (dtype, x.dtype) else x.dtype, x.grad)
    out.storage.head_major = x.storage.head_major
    t.step("mul", (x,) if table is None else (x, table), (out,), saved=() if table is None else (table,))
    return out


def rotary_complex(t: Tape, x: Value) -> Value:
    """Pairs of x as complex numbers in fp32, times the angles, back in the type of x: nothing is kept."""
    return ops.cast(t, ops.unary(t, "mul", ops.cast(t, x, FP32), keeps="nothing"), x.dtype)
