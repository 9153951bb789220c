"""Attention without its projections: softmax(q·kᵀ)·v, with stored scores or in one kernel."""

from __future__ import annotations

from everybyte.basics.dtypes import BOOL, FP32
from everybyte.engines.megatron.layers.linear import kept
from everybyte.engines.megatron.style import Style
from everybyte.layers.attention.kernels import SCORES
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import KEYS, QUERIES, TOKENS, Dim, Size
from everybyte.layers.recording.tape import Made, Tape, Value

PARKED = "core_attn"
"""The module whose kept tensors may wait in host memory (offload_modules)."""


def attend(t: Tape, q: Value, k: Value, v: Value, heads: int, groups: int, width: Dim, style: Style, *, padded: bool = False) -> Value:
    """q (n, a·d), k and v (n, k·d) of this rank's heads -> (n, `width`). `padded`: the mask tells real tokens from padding (BERT)."""
    with t.scope("core_attention", q, k, v), t.recomputed(style.again("core_attn")), t.scope(""):
        if style.attention == "unfused":
            return _unfused(t, q, k, v, heads, groups, width, style, padded=padded)
        return _one_kernel(t, q, k, v, heads, width, style)


def _one_kernel(t: Tape, q: Value, k: Value, v: Value, heads: int, width: Dim, style: Style) -> Value:
    """cuDNN or FlashAttention: keeps q, k, v, its result and the logarithm of each row's sum. The result of FlashAttention 2 is copied to bring its heads
    together (Transformer Engine attention/dot_product_attention/backends.py FlashAttention.forward `.contiguous()`; legacy Megatron
    megatron/model/transformer.py ParallelAttention.forward, which also copies q, k and v to have the batch first)."""
    if not style.te:
        q, k, v = (ops.contiguous(t, x) for x in (q, k, v))
    out = t.new("attention", (TOKENS, width), q.dtype, True)
    sums = t.new("logsumexp", (TOKENS, Dim("a", heads)), FP32, False)
    made = [Made(x, Size.of(x.dims, x.dtype)) for x in (q, k, v)]
    t.step("attention", (q, k, v), (out, sums), saved=kept(t, style, PARKED, q, k, v, out, sums), made=made, back_scratch=sums.storage.size)
    return ops.contiguous(t, out) if style.attention == "flash2" else out


def _unfused(t: Tape, q: Value, k: Value, v: Value, heads: int, groups: int, width: Dim, style: Style, *, padded: bool) -> Value:
    """Scores, their softmax, its dropout and the product with the values, each a tensor; the softmax writes its gradient over the incoming one
    (TransformerEngine pytorch/csrc/extensions/softmax.cpp, fusions/fused_softmax.py). Transformer Engine makes the mask of all pairs of positions anew
    (get_full_mask), and the variables of its function hold mask and scores until it returns; scores of local layers lie in the global memory buffer
    (transformer/dot_product_attention.py)."""
    if groups < heads:
        k, v = (ops.repeat(t, x, (TOKENS, Dim("a·d", x.dims[-1].size // groups * heads))) for x in (k, v))
    square = (Dim("a", heads), SCORES)
    made = [Made(q, Size.of(q.dims, q.dtype)), Made(k, Size.of(k.dims, k.dtype))]
    scores = t.new("matmul", square, q.dtype, True) if style.te else t.from_outside("scores", square, q.dtype)
    if style.te:
        t.hold(ops.made(t, "mask", (QUERIES, KEYS), BOOL), scores)
    t.step("matmul", (q, k), (scores,), saved=kept(t, style, PARKED, q, k), made=made)
    shares = t.new("softmax", square, q.dtype, True)
    t.step("softmax", (scores,), (shares,), saved=kept(t, style, PARKED, shares), made=[Made(scores, None)])
    if padded and style.te:
        shares = _cut(t, shares)
    if style.dropout:
        dropped = t.new("dropout", square, q.dtype, True)
        mask = t.new("dropout mask", square, BOOL, False)
        t.step("dropout", (shares,), (dropped, mask), saved=kept(t, style, PARKED, mask), made=[Made(shares, Size.of(square, q.dtype))])
        shares = dropped
    by_head = t.new("matmul", (TOKENS, width), q.dtype, True)
    made = [Made(shares, Size.of(square, q.dtype)), Made(v, Size.of(v.dims, v.dtype))]
    t.step("matmul", (shares, v), (by_head,), saved=kept(t, style, PARKED, shares, v), made=made)
    return ops.contiguous(t, by_head)


def _cut(t: Tape, shares: Value) -> Value:
    """Transformer Engine makes the mask of all pairs of positions out of the padding, anew in each layer, and sets the rows of padding to 0 by
    `masked_fill`, which keeps it (attention/dot_product_attention/backends.py UnfusedDotProductAttention)."""
    mask = t.new("padding mask", (SCORES,), BOOL, False)
    out = t.new("masked_fill", shares.dims, shares.dtype, True)
    t.step("masked_fill", (shares,), (out, mask), saved=(mask,), made=[Made(shares, Size.of(shares.dims, shares.dtype))])
    return out
