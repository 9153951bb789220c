"""Attention: projections, rotary positions, and the kernels that compute softmax(q·kᵀ)·v."""

from __future__ import annotations

from dataclasses import dataclass

from everybyte.basics.dtypes import BF16, FP16, FP32
from everybyte.layers import ops
from everybyte.layers.linear import linear
from everybyte.layers.norm import rms_norm
from everybyte.layers.size import B, Dim, Dims, S, Size, T
from everybyte.layers.tape import Made, Tape, Value

SCORES: Dim = Dim("b·s·t", 1, (B, S, T))


@dataclass(frozen=True, slots=True)
class Heads:
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


@dataclass(frozen=True, slots=True)
class Attention:
    """Self-attention with grouped heads, as the Llama family writes it; options cover its relatives."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    fused_qkv: str = ""
    """Name of one joined projection (`qkv_proj`), empty for three."""
    rope: bool = True
    qk_norm: str = ""
    """`head`: RMSNorm over each head; `all`: over the whole projection; empty for none."""
    qk_norm_style: str = "llama"
    softcap: bool = False
    sinks: bool = False
    """One learned logit a head joins the scores (gpt-oss)."""
    v_dim: int = 0
    """Width of a value head where it differs from head_dim."""
    gate: str = ""
    """What scales the result before the last projection, through a sigmoid: `joined`, made by q_proj beside the queries (Qwen3-Next);
    else the name of a projection to one number a head (Step 3.5)."""
    complex_rope: bool = False
    """Rotation as a product of complex numbers in fp32 (Llama 4, DeepSeek-V2)."""
    window: int = 0
    dropout: float = 0.0
    out_dropout: float = 0.0
    names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj")

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        sizes = Heads(self.heads, self.kv_heads, self.head_dim, self.v_dim or self.head_dim)
        gate = None
        if self.gate == "joined":
            q, k, v, gate = self._project_gated(t, x, sizes)
        else:
            q, k, v = self._project(t, x, sizes)
            gate = linear(t, x, self.gate, Dim("a", self.heads)) if self.gate else None
        if self.rope:
            turn = rotary_complex if self.complex_rope else rotary
            q, k = turn(t, q), turn(t, k)
        t.cache("kv", "key", (sizes.k_width,))
        t.cache("kv", "value", (sizes.v_width,))
        sinks = t.parameter("sinks", (Dim("a", self.heads),)) if self.sinks else None
        out = attend(t, q, k, v, sizes, dropout=self.dropout, softcap=self.softcap, sinks=sinks)
        if gate is not None:
            out = ops.mul(t, out, ops.unary(t, "sigmoid", gate, keeps="output"))
        out = linear(t, out, self.names[3], Dim("h", self.hidden), bias=self.out_bias)
        return ops.dropout(t, out, self.out_dropout)

    def _project(self, t: Tape, x: Value, sizes: Heads) -> tuple[Value, Value, Value]:
        width_q, width_k = sizes.q_width, sizes.k_width
        if self.fused_qkv:
            whole = Dim("(A+2K)", width_q.size + 2 * width_k.size)
            joined = linear(t, x, self.fused_qkv, whole, bias=self.qkv_bias)
            q, k, v = (ops.narrow(t, joined, (x.dims[0], w)) for w in (width_q, width_k, width_k))
        else:
            q = linear(t, x, self.names[0], width_q, bias=self.qkv_bias)
            k = linear(t, x, self.names[1], width_k, bias=self.qkv_bias)
            v = linear(t, x, self.names[2], sizes.v_width, bias=self.qkv_bias)
        return (*self._normalize(t, q, k), v)

    def _project_gated(self, t: Tape, x: Value, sizes: Heads) -> tuple[Value, Value, Value, Value]:
        """q_proj makes each head's query and gate; the gate is copied into its own order."""
        both = linear(t, x, self.names[0], Dim("2A", 2 * sizes.q_width.size), bias=self.qkv_bias)
        q, gate = ops.split(t, both, [(x.dims[0], sizes.q_width)] * 2)
        gate = ops.contiguous(t, gate)
        k = linear(t, x, self.names[1], sizes.k_width, bias=self.qkv_bias)
        q, k = self._normalize(t, q, k)
        return q, k, linear(t, x, self.names[2], sizes.v_width, bias=self.qkv_bias), gate

    def _normalize(self, t: Tape, q: Value, k: Value) -> tuple[Value, Value]:
        if self.qk_norm == "all":
            return rms_norm(t, q, "q_norm", style=self.qk_norm_style), rms_norm(t, k, "k_norm", style=self.qk_norm_style)
        if self.qk_norm == "head":
            return self._head_norm(t, q, "q_norm", self.heads), self._head_norm(t, k, "k_norm", self.kv_heads)
        return q, k

    def _head_norm(self, t: Tape, x: Value, leaf: str, heads: int) -> Value:
        letter = "a" if leaf == "q_norm" else "k"
        by_head = ops.view(x, (*x.dims[:-1], Dim(letter, heads), Dim("d", self.head_dim)))
        return ops.view(rms_norm(t, by_head, leaf, style=self.qk_norm_style), x.dims)


def rotary(t: Tape, x: Value) -> Value:
    """`x·cos + rotate_half(x)·sin` as HF writes it. cos and sin are made once for all layers; nothing else is kept."""
    if t.setup.kernels.rope == "fused":
        return ops.unary(t, "rope", x, keeps="nothing")
    # cos and sin have the type of the hidden states: fp32 under autocast, which lifts q and k to fp32
    table = FP32 if t.setup.compute is not None and t.setup.weights == FP32 else x.dtype
    half = ops.unary(t, "rotate_half", x, keeps="nothing")
    left = _times_table(t, x, table)
    right = _times_table(t, half, table)
    return ops.add(t, left, right)


def rotary_complex(t: Tape, x: Value) -> Value:
    """Pairs of x as complex numbers in fp32, times the angles, back in the type of x: nothing is kept."""
    return ops.cast(t, ops.unary(t, "mul", ops.cast(t, x, FP32), keeps="nothing"), x.dtype)


def _times_table(t: Tape, x: Value, table: object) -> Value:
    out = t.new("mul", x.dims, FP32 if table == FP32 else x.dtype, x.grad)
    t.step("mul", (x,), (out,))
    return out


def repeat_kv(t: Tape, x: Value, heads: int, kv_heads: int, width: Dim) -> Value:
    """Keys or values copied to every query head; a single head of a single sequence stays a broadcast view."""
    if heads == kv_heads:
        return x
    dims = (*x.dims[:-1], width)
    if kv_heads == 1 and t.setup.single:
        out = Value(x.storage, dims, x.dtype, x.grad)
        t.step("expand", (x,), (out,), made=[Made(x, Size.of(x.dims, x.dtype))])
        return out
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
    bias: Value | None = None,
) -> Value:
    """softmax(q·kᵀ)·v with the chosen kernel: q (n, A), k (n, K), v (n, Kv) -> (n, Av).

    `scores`: query-key pairs of one head; `wide`: eager softmax runs in fp32, as in most decoders; `bias` is added to the scores.
    """
    kernels = t.setup.kernels
    if kernels.attention == "eager":
        return _eager(t, q, k, v, sizes, dropout, softcap, sinks, scores, wide, bias)
    if kernels.repeat_kv or (kernels.masked and kernels.attention == "sdpa"):
        k = repeat_kv(t, k, sizes.a, sizes.k, sizes.q_width)
        v = repeat_kv(t, v, sizes.a, sizes.k, sizes.out_width)
    return _fused(t, q, k, v, sizes, bias)


def _eager(
    t: Tape,
    q: Value,
    k: Value,
    v: Value,
    sizes: Heads,
    rate: float,
    softcap: bool,
    sinks: bool,
    pairs: Dim = SCORES,
    wide: bool = True,
    bias: Value | None = None,
) -> Value:
    """transformers `eager_attention_forward`: the score matrix is written out and softmax runs in fp32 (`wide`) or in the type of the scores."""
    k = repeat_kv(t, k, sizes.a, sizes.k, sizes.q_width)
    v = repeat_kv(t, v, sizes.a, sizes.k, sizes.out_width)
    scores_dims: Dims = (Dim("a", sizes.a), pairs)
    scores = ops.scale(t, ops.matmul(t, q, k, scores_dims))
    if softcap:
        scores = ops.scale(t, ops.unary(t, "tanh", ops.scale(t, scores), keeps="output"))
    scores = ops.add(t, scores, bias) if bias is not None else ops.unary(t, "add mask", scores, keeps="nothing")
    if sinks is not None:
        weights = _softmax_with_sinks(t, scores, sinks)
    else:
        weights = ops.cast(t, ops.softmax(t, scores, FP32 if wide else None), q.dtype)
    weights = ops.dropout(t, weights, rate)
    out = ops.matmul(t, weights, v, (q.dims[0], sizes.out_width))
    return ops.contiguous(t, out)


def _softmax_with_sinks(t: Tape, scores: Value, sinks: Value) -> Value:
    """One more column of logits, minus the row's maximum, softmax in the type of the scores, the column cut off (modeling_gpt_oss.py)."""
    heads, pairs = scores.dims
    one = pairs._replace(letter="b·s", axes=(B, S))
    wider = ops.join(t, (scores, sinks), (heads, pairs), (heads, one))
    places = t.new("max positions", (heads, one), INT64, False)
    highest = t.new("max", (heads, one), wider.dtype, wider.grad)
    t.step("max", (wider,), (highest, places), saved=(places,))
    shifted = ops.add(t, wider, highest)
    probabilities = ops.softmax(t, shifted, shifted.dtype)
    return ops.narrow(t, probabilities, scores.dims)


def _fused(t: Tape, q: Value, k: Value, v: Value, sizes: Heads, bias: Value | None = None) -> Value:
    """SDPA or flash attention: keeps q, k, v, its result and the log-sum-exp of each row.

    CUDA's flash backward also makes an fp32 accumulator of dq, one fp32 number a row, and keys' and values' gradients for every query
    head when heads are grouped (flash-attention csrc/flash_attn/flash_api.cpp mha_bwd: dq_accum, softmax_d, dk_expanded, dv_expanded).
    """
    q, k, v = ops.autocast(t, q), ops.autocast(t, k), ops.autocast(t, v)
    out = t.new("attention", (q.dims[0], sizes.out_width), q.dtype, any(x.grad for x in (q, k, v)))
    lse = t.new("logsumexp", (q.dims[0], Dim("a", sizes.a)), FP32, False)
    hidden = Size()
    if t.setup.kernels.device == "cuda" and q.dtype in (BF16, FP16):
        hidden = Size.of(q.dims, FP32) + Size.of(lse.dims, FP32)
        if sizes.k != sizes.a:
            hidden = hidden + Size.of((k.dims[0], sizes.q_width), k.dtype) + Size.of((v.dims[0], sizes.out_width), v.dtype)
    inputs = (q, k, v) if bias is None else (q, k, v, ops.autocast(t, bias))
    t.step("attention", inputs, (out, lse), saved=(*inputs, out, lse), back_scratch=hidden)
    return out
