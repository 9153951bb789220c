"""Attention kernels: softmax(q·kᵀ)·v written out, or as one call."""

from __future__ import annotations

from everybyte.basics.dtypes import BF16, BOOL, FP16, FP32, INT64
from everybyte.basics.record import Record
from everybyte.layers.common.rope import table_dtype
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import B, Dim, Dims, S, Size, T, elements
from everybyte.layers.recording.tape import Made, Storage, Tape, Value

SCORES: Dim = Dim("b·s·t", 1, (B, S, T))


class Heads(Record, frozen=True):
    """Sizes of an attention layer: a query heads, k key-value heads, d and dv wide."""

    a: int
    k: int
    d: int
    dv: int

    @property
    def q_width(self) -> Dim:
        """A = a·d."""
        return Dim("A", self.a * self.d)

    @property
    def k_width(self) -> Dim:
        """K = k·d."""
        return Dim("K", self.k * self.d)

    @property
    def v_width(self) -> Dim:
        """Kv = k·dv."""
        return Dim("K" if self.dv == self.d else "Kv", self.k * self.dv)

    @property
    def out_width(self) -> Dim:
        """Av = a·dv."""
        return Dim("A" if self.dv == self.d else "Av", self.a * self.dv)


def repeat_kv(t: Tape, x: Value, heads: int, kv_heads: int, width: Dim) -> Value:
    """Keys or values copied to every query head; a single head stays a broadcast view."""
    if heads == kv_heads:
        return x
    dims = (*x.dims[:-1], width)
    if kv_heads == 1:
        return ops.expand(t, x, dims)
    return ops.repeat(t, x, dims)


def attend(
    t: Tape,
    q: Value,
    k: Value,
    v: Value,
    sizes: Heads,
    *,
    dropout: float = 0.0,
    softcap: bool = False,
    sinks: Value | None = None,
    scores: Dim = SCORES,
    wide: bool = True,
    window: int = 0,
    bias: Value | None = None,
    broadcast: bool = False,
    wide_scores: bool = False,
    causal: bool = True,
    shifted: bool = False,
) -> Value:
    """softmax(q·kᵀ)·v with the chosen kernel: q (n, A), k (n, K), v (n, Kv) -> (n, Av).

    `scores`: query-key pairs of one head; `wide`: eager softmax runs in fp32, as in most decoders, `wide_scores`: the scores too; `bias` is added to them.
    Soft caps and sinks are not in SDPA: HF then runs the eager path. `broadcast`: SDPA is given fewer key heads and not told to group them,
    for which it has no fused kernel (Falcon-7B); nor has it one for grouped heads in fp32, which flash attention does not take and the memory-efficient kernel
    does not group (sdp_utils.cpp can_use_mem_efficient_attention). `causal`: tokens see what came before, so that eager scores always get a mask.
    `shifted`: eager scores lose their row's maximum before softmax, with sinks or without (MiMo-V2).
    """
    kernels = t.setup.kernels
    if kernels.attention == "eager" or (kernels.attention == "sdpa" and (softcap or sinks is not None)):
        return _eager(t, q, k, v, sizes, dropout, softcap, sinks, scores, wide, wide_scores, bias, causal or kernels.masked, shifted)
    masked = kernels.attention == "sdpa" and (kernels.masked or bias is not None or bool(window and t.setup.past_window))
    if (broadcast and kernels.attention == "sdpa") or (kernels.device == "cpu" and (t.setup.rate(dropout) or sizes.d != sizes.dv)):
        return _math(t, q, k, v, sizes, dropout, scores)
    grouped_wide = sizes.k != sizes.a and (t.setup.compute or q.dtype) == FP32 and not (kernels.repeat_kv or masked)
    if grouped_wide and kernels.attention == "sdpa" and kernels.device == "cuda":
        return _math(t, q, k, v, sizes, dropout, scores)
    if kernels.repeat_kv or masked:
        k = repeat_kv(t, k, sizes.a, sizes.k, sizes.q_width)
        v = repeat_kv(t, v, sizes.a, sizes.k, sizes.out_width)
    if masked and bias is None:
        bias = ops.made(t, "attention mask", (scores,), t.setup.compute or q.dtype)
        t.step("mask", (), (bias,))
        t.share("attention mask", (scores,), BOOL)
    return _fused(t, q, k, v, sizes, bias)


def _eager(
    t: Tape,
    q: Value,
    k: Value,
    v: Value,
    sizes: Heads,
    rate: float,
    softcap: bool,
    sinks: Value | None,
    pairs: Dim,
    wide: bool,
    wide_scores: bool,
    bias: Value | None,
    masked: bool,
    shifted: bool,
) -> Value:
    """transformers `eager_attention_forward`: the score matrix is written out and softmax runs in fp32 (`wide`) or in the type of the scores."""
    k = repeat_kv(t, k, sizes.a, sizes.k, sizes.q_width)
    v = repeat_kv(t, v, sizes.a, sizes.k, sizes.out_width)
    # key_states and value_states are local variables of the eager function
    with t.scope("", k, v):
        scores_dims: Dims = (Dim("a", sizes.a), pairs)
        left, right = (ops.cast(t, x, FP32) if wide_scores else x for x in (q, k))
        scores = ops.scale(t, ops.matmul(t, by_head(t, left), by_head(t, right), scores_dims))
        if softcap:
            scores = ops.scale(t, ops.unary(t, "tanh", ops.scale(t, scores), keeps="output"))
        if bias is not None:
            scores = ops.add(t, scores, bias)
        elif masked:
            scores = add_mask(t, scores)
        if sinks is not None:
            weights = _softmax_with_sinks(t, scores, sinks)
        else:
            if shifted:
                scores = _less_maximum(t, scores, Size.of(scores.dims, scores.dtype))
            weights = ops.softmax(t, scores, FP32 if wide else None)
            if wide:
                weights = ops.cast(t, weights, v.dtype if wide_scores else q.dtype)
                t.drop(scores)
            else:
                t.drop(scores)
                weights = ops.cast(t, weights, v.dtype)
        weights = ops.dropout(t, weights, rate)
        out = ops.matmul(t, weights, by_head(t, v), (q.dims[0], sizes.out_width))
    return ops.contiguous(t, out)


def _softmax_with_sinks(t: Tape, scores: Value, sinks: Value) -> Value:
    """One more column of logits, minus the row's maximum, softmax in the type of the scores, the column cut off (modeling_gpt_oss.py)."""
    whole = Size.of(scores.dims, scores.dtype) + Size.of(_row(scores), scores.dtype)

    def made(what: str) -> Value:
        return Value(Storage(whole, t.path, what, scores.dims, scores.dtype), scores.dims, scores.dtype, scores.grad or sinks.grad)

    joined, probabilities = made("cat"), made("softmax")
    t.step("cat", (scores, sinks), (joined,), made=[Made(scores, None), Made(sinks, Size.of(sinks.dims, sinks.dtype))])
    shifted = _less_maximum(t, joined, whole)
    t.step("softmax", (shifted,), (probabilities,), saved=(probabilities,), made=[Made(shifted, whole)])
    kept = Value(probabilities.storage, scores.dims, scores.dtype, probabilities.grad)
    t.step("narrow", (probabilities,), (kept,), made=[Made(probabilities, whole)])
    return kept


def _row(scores: Value) -> Dims:
    """One number for each query and head."""
    heads, pairs = scores.dims
    return heads, Dim("b·s", 1, tuple(a for a in pairs.axes if a in (B, S)))


def _less_maximum(t: Tape, scores: Value, whole: Size) -> Value:
    """Scores minus their row's maximum, whose position is kept. `whole`: bytes of the scores."""
    row = _row(scores)
    highest, places = t.new("max", row, scores.dtype, scores.grad), t.new("max positions", row, INT64, False)
    t.step("max", (scores,), (highest, places), saved=(places,), made=[Made(scores, whole)])
    out = Value(Storage(whole, t.path, "sub", scores.dims, scores.dtype), scores.dims, scores.dtype, scores.grad)
    t.step("sub", (scores, highest), (out,), made=[Made(scores, None), Made(highest, Size.of(row, scores.dtype))])
    return out


def by_head(t: Tape, x: Value) -> Value:
    """A batched product lays its factors out by head first: a copy, unless there is one sequence or repeat_kv, a copy or a cast did so already."""
    if t.setup.compute is not None and x.dtype != t.setup.compute:
        return x
    return _laid_out(t, x)


def _laid_out(t: Tape, x: Value) -> Value:
    broadcast = elements(x.dims)[0] > elements(x.storage.dims)[0]
    if t.setup.single or (not broadcast and (x.storage.head_major or x.storage.what == "copy")):
        return x
    return ops.contiguous(t, x)


def add_mask(t: Tape, scores: Value) -> Value:
    """Eager scores plus the mask, which has the type of the hidden states: fp32 under autocast."""
    out = t.new("add mask", scores.dims, table_dtype(t, scores), scores.grad)
    t.share("attention mask", scores.dims[1:], t.setup.weights)
    t.step("add mask", (scores,), (out,), made=[Made(scores, None if out.dtype == scores.dtype else Size.of(scores.dims, scores.dtype))])
    return out


def _math(t: Tape, q: Value, k: Value, v: Value, sizes: Heads, rate: float, pairs: Dim) -> Value:
    """SDPA out of plain operations, in fp32: where no fused kernel can run, as on the CPU with dropout
    (ATen native/transformers/attention.cpp `_scaled_dot_product_attention_math`). Its local variables live until it returns."""
    origin = q.dtype if t.setup.compute is None else t.setup.compute
    with t.scope("", q, k, v):
        q, k, v = (ops.cast(t, ops.autocast(t, x), FP32) for x in (q, k, v))
        t.hold(q, k, v)
        q, k = ops.scale(t, q), ops.scale(t, k)
        k, v = repeat_kv(t, k, sizes.a, sizes.k, sizes.q_width), repeat_kv(t, v, sizes.a, sizes.k, sizes.out_width)
        t.hold(q)
        scores = _product(t, _laid_out(t, q), _laid_out(t, k), (Dim("a", sizes.a), pairs))
        weights = ops.dropout(t, _safe_softmax(t, scores), rate)
        t.hold(weights)
        out = _product(t, weights, _laid_out(t, v), (q.dims[0], sizes.out_width))
    return ops.contiguous(t, ops.cast(t, out, origin))


def _safe_softmax(t: Tape, scores: Value) -> Value:
    """Softmax that gives zeros for rows without a key: also makes a bool an element."""
    out = t.new("softmax", scores.dims, scores.dtype, scores.grad)
    t.step("softmax", (scores,), (out,), saved=(out,), scratch=Size.of(scores.dims, BOOL))
    return out


def _product(t: Tape, a: Value, b: Value, dims: Dims) -> Value:
    """A batched product that autocast does not reach."""
    out = t.new("matmul", dims, a.dtype, a.grad or b.grad)
    t.step("matmul", (a, b), (out,), saved=([b] if a.grad else []) + ([a] if b.grad else []))
    return out


def sdpa(t: Tape, q: Value, k: Value, v: Value, sizes: Heads) -> Value:
    """`F.scaled_dot_product_attention` without a mask, in models that call nothing else (diffusers)."""
    return _fused(t, q, k, v, sizes)


def _fused(t: Tape, q: Value, k: Value, v: Value, sizes: Heads, bias: Value | None = None) -> Value:
    """SDPA or flash attention: keeps q, k, v, its result and the log-sum-exp of each row; and what is added to the scores, such as a mask, which
    every call turns from bool into the type of q (ATen native/transformers/attention.cpp `convert_boolean_attn_mask`).

    CUDA's flash backward also makes an fp32 accumulator of dq, one fp32 number a row, and keys' and values' gradients for every query
    head when heads are grouped (flash-attention csrc/flash_attn/flash_api.cpp mha_bwd: dq_accum, softmax_d, dk_expanded, dv_expanded).
    """
    q, k, v = ops.autocast(t, q), ops.autocast(t, k), ops.autocast(t, v)
    out = t.new("attention", (q.dims[0], sizes.out_width), q.dtype, any(x.grad for x in (q, k, v)))
    lse = t.new("logsumexp", (q.dims[0], Dim("a", sizes.a)), FP32, False)
    hidden: tuple[Size, ...] = ()
    if t.setup.kernels.device == "cuda" and q.dtype in (BF16, FP16):
        hidden = (Size.of(lse.dims, FP32), Size.of(q.dims, FP32))
        if sizes.k != sizes.a:
            hidden = (*hidden, Size.of((k.dims[0], sizes.q_width), k.dtype), Size.of((v.dims[0], sizes.out_width), v.dtype))
    inputs = (q, k, v) if bias is None else (q, k, v, ops.autocast(t, bias))
    t.step("attention", inputs, (out, lse), saved=(*inputs, out, lse), back_scratch=hidden)
    # Flash attention's result has the layout of q: where heads lie one after another, HF's `transpose(1, 2).contiguous()` makes a copy. The
    # memory-efficient kernel, which takes fp32, has them side by side (ATen native/transformers/cuda/attention.cu _efficient_attention_forward)
    efficient = t.setup.kernels.device == "cuda" and t.setup.kernels.attention == "sdpa" and q.dtype == FP32
    return ops.contiguous(t, out) if q.storage.head_major and sizes.d == sizes.dv and not efficient else out
