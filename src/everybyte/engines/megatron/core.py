"""Attention without its projections: softmax(q·kᵀ)·v, with stored scores or in one kernel."""

from __future__ import annotations

from everybyte.basics.dtypes import BOOL, FP32
from everybyte.engines.megatron.linear import kept
from everybyte.engines.megatron.style import Style
from everybyte.layers import ops
from everybyte.layers.sdp import SCORES
from everybyte.layers.size import TOKENS, Dim, Size
from everybyte.layers.tape import Made, Tape, Value


def attend(t: Tape, q: Value, k: Value, v: Value, heads: int, groups: int, width: Dim, style: Style, *, padded: bool = False) -> Value:
    """q (n, a·d), k and v (n, k·d) of this rank's heads -> (n, `width`). `padded`: the mask tells real tokens from padding (BERT)."""
    with t.scope("core_attention", q, k, v), t.recomputed(style.again("core_attn")):
        if style.attention == "unfused":
            return _unfused(t, q, k, v, heads, groups, width, style, padded=padded)
        return _one_kernel(t, q, k, v, heads, width, style)


def _one_kernel(t: Tape, q: Value, k: Value, v: Value, heads: int, width: Dim, style: Style) -> Value:
    """cuDNN or FlashAttention: keeps q, k, v, its result and the logarithm of each row's sum. Transformer Engine copies the result of FlashAttention 2
    to bring its heads together (attention/dot_product_attention/backends.py FlashAttention.forward `.contiguous()`)."""
    out = t.new("attention", (TOKENS, width), q.dtype, True)
    sums = t.new("logsumexp", (TOKENS, Dim("a", heads)), FP32, False)
    made = [Made(x, Size.of(x.dims, x.dtype)) for x in (q, k, v)]
    saved, fetched = kept(style, "core_attn", q, k, v, out, sums)
    t.step("attention", (q, k, v), (out, sums), saved=saved, made=made, back_scratch=sums.storage.size + fetched)
    return ops.contiguous(t, out) if style.attention == "flash2" and style.te else out


def _unfused(t: Tape, q: Value, k: Value, v: Value, heads: int, groups: int, width: Dim, style: Style, *, padded: bool) -> Value:
    """Scores, their softmax, its dropout and the product with the values, each a tensor. Transformer Engine's softmax makes its
    gradient anew (csrc/extensions/softmax.cpp); that of local layers writes it over the incoming one (fusions/fused_softmax.py), and their scores lie in
    the global memory buffer (transformer/dot_product_attention.py)."""
    if groups < heads:
        k, v = (ops.repeat(t, x, (TOKENS, Dim("a·d", x.dims[-1].size // groups * heads))) for x in (k, v))
    square = (Dim("a", heads), SCORES)
    made = [Made(q, Size.of(q.dims, q.dtype)), Made(k, Size.of(k.dims, k.dtype))]
    scores = t.new("matmul", square, q.dtype, True) if style.te else t.from_outside("scores", square, q.dtype)
    saved, fetched = kept(style, "core_attn", q, k)
    t.step("matmul", (q, k), (scores,), saved=saved, made=made, back_scratch=fetched)
    shares = t.new("softmax", square, q.dtype, True)
    saved, fetched = kept(style, "core_attn", shares)
    t.step("softmax", (scores,), (shares,), saved=saved, made=[Made(scores, scores.storage.size if style.te else None)], back_scratch=fetched)
    if padded and style.te:
        shares = _cut(t, shares)
    if style.dropout:
        dropped = t.new("dropout", square, q.dtype, True)
        mask = t.new("dropout mask", square, BOOL, False)
        saved, fetched = kept(style, "core_attn", mask)
        t.step("dropout", (shares,), (dropped, mask), saved=saved, made=[Made(shares, Size.of(square, q.dtype))], back_scratch=fetched)
        shares = dropped
    by_head = t.new("matmul", (TOKENS, width), q.dtype, True)
    made = [Made(shares, Size.of(square, q.dtype)), Made(v, Size.of(v.dims, v.dtype))]
    saved, fetched = kept(style, "core_attn", shares, v)
    t.step("matmul", (shares, v), (by_head,), saved=saved, made=made, back_scratch=fetched)
    return ops.contiguous(t, by_head)


def _cut(t: Tape, shares: Value) -> Value:
    """Transformer Engine makes the mask of all pairs of positions out of the padding, anew in each layer, and sets the rows of padding to 0 by
    `masked_fill`, which keeps it (attention/dot_product_attention/backends.py UnfusedDotProductAttention)."""
    mask = t.new("padding mask", (SCORES,), BOOL, False)
    out = t.new("masked_fill", shares.dims, shares.dtype, True)
    t.step("masked_fill", (shares,), (out, mask), saved=(mask,), made=[Made(shares, Size.of(shares.dims, shares.dtype))])
    return out
