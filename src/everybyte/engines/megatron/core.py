"""Attention without its projections: softmax(q·kᵀ)·v, with stored scores or in one kernel."""

from __future__ import annotations

from everybyte.basics.dtypes import BOOL, FP32
from everybyte.engines.megatron.style import Style
from everybyte.layers import ops
from everybyte.layers.sdp import SCORES
from everybyte.layers.size import TOKENS, Dim, Size
from everybyte.layers.tape import Made, Tape, Value


def attend(t: Tape, q: Value, k: Value, v: Value, heads: int, groups: int, width: Dim, style: Style) -> Value:
    """q (n, a·d), k and v (n, k·d) of this rank's heads -> (n, `width`)."""
    with t.scope("core_attention", q, k, v), t.recomputed(style.again("core_attn")):
        if style.attention == "unfused":
            return _unfused(t, q, k, v, heads, groups, width, style)
        return _one_kernel(t, q, k, v, heads, width, style)


def _one_kernel(t: Tape, q: Value, k: Value, v: Value, heads: int, width: Dim, style: Style) -> Value:
    """cuDNN or FlashAttention: keeps q, k, v, its result and the logarithm of each row's sum. Transformer Engine copies the result of FlashAttention 2
    to bring its heads together (attention/dot_product_attention/backends.py FlashAttention.forward `.contiguous()`)."""
    out = t.new("attention", (TOKENS, width), q.dtype, True)
    sums = t.new("logsumexp", (TOKENS, Dim("a", heads)), FP32, False)
    made = [Made(x, Size.of(x.dims, x.dtype)) for x in (q, k, v)]
    t.step("attention", (q, k, v), (out, sums), saved=(q, k, v, out, sums), made=made, back_scratch=sums.storage.size)
    return ops.contiguous(t, out) if style.attention == "flash2" and style.te else out


def _unfused(t: Tape, q: Value, k: Value, v: Value, heads: int, groups: int, width: Dim, style: Style) -> Value:
    """Scores, their softmax, its dropout and the product with the values, each a tensor. The fused softmax writes its gradient over the incoming
    one (fusions/fused_softmax.py). Local layers put the scores into the global memory buffer (transformer/dot_product_attention.py)."""
    if groups < heads:
        k, v = (ops.repeat(t, x, (TOKENS, Dim("a·d", x.dims[-1].size // groups * heads))) for x in (k, v))
    square = (Dim("a", heads), SCORES)
    made = [Made(q, Size.of(q.dims, q.dtype)), Made(k, Size.of(k.dims, k.dtype))]
    if style.te:
        scores = t.new("matmul", square, q.dtype, True)
        t.step("matmul", (q, k), (scores,), saved=(q, k), made=made)
    else:
        scores = t.given("scores", square, q.dtype, grad=True)
        scores.storage.outside = True
        t.step("matmul", (q, k), (scores,), saved=(q, k), made=made)
    shares = t.new("softmax", square, q.dtype, True)
    t.step("softmax", (scores,), (shares,), saved=(shares,), made=[Made(scores, None)])
    if style.dropout:
        kept = t.new("dropout", square, q.dtype, True)
        mask = t.new("dropout mask", square, BOOL, False)
        t.step("dropout", (shares,), (kept, mask), saved=(mask,), made=[Made(shares, Size.of(square, q.dtype))])
        shares = kept
    by_head = t.new("matmul", (TOKENS, width), q.dtype, True)
    made = [Made(shares, Size.of(square, q.dtype)), Made(v, Size.of(v.dims, v.dtype))]
    t.step("matmul", (shares, v), (by_head,), saved=(shares, v), made=made)
    return ops.contiguous(t, by_head)
