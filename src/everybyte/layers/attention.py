"""Attention: projections, rotary positions, and the kernels that compute softmax(q·kᵀ)·v."""

from __future__ import annotations

from dataclasses import dataclass

from everybyte.basics.dtypes import BF16, FP16, FP32, INT64
from everybyte.layers import ops
from everybyte.layers.linear import linear
from everybyte.layers.norm import Norm
from everybyte.layers.rope import partial_rotary
from everybyte.layers.rope import rotary as rotary
from everybyte.layers.size import B, Dim, Dims, S, Size, T
from everybyte.layers.tape import Made, Storage, Tape, Value

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
    fused_split: bool = False
    """Parts of the joined projection come from one split (GPT-2, NeoX), not from three slices (Phi-3)."""
    rope: bool = True
    rotary_dim: int = 0
    """Numbers of a head that turn, where the turned part is cut out and joined again; 0: the whole head at once."""
    rope_wide: bool = False
    """Positions are applied in fp32 and the result is cast back (Cohere)."""
    qk_norm: str = ""
    """`head`: a norm over each head; `all`: over the whole projection; `each`: one module a head (StableLM); empty for none."""
    qk_norm_style: str = "llama"
    qk_norm_kind: str = "rms"
    qk_norm_names: tuple[str, str] = ("q_norm", "k_norm")
    qk_norm_late: bool = False
    """The norms follow the positions (Hunyuan)."""
    scaled_query: bool = False
    """The query is multiplied by 1/√d on its own, before the product with the keys (OPT)."""
    softcap: bool = False
    sinks: bool = False
    wide_softmax: bool = True
    """Eager softmax runs in fp32; False: in the type of the scores (GPT-2)."""
    window: int = 0
    """Each token sees this many back, itself included; 0 for all."""
    dropout: float = 0.0
    out_dropout: float = 0.0
    names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj")

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        sizes = Heads(self.heads, self.kv_heads, self.head_dim, self.head_dim)
        q, k, v = self._project(t, x, sizes)
        if not self.qk_norm_late:
            q, k = self._norms(t, q, k)
        if self.scaled_query:
            q = ops.scale(t, q)
        if self.rope:
            q, k = self._positions(t, q, self.heads), self._positions(t, k, self.kv_heads)
        if self.qk_norm_late:
            q, k = self._norms(t, q, k)
        t.cache("kv", "key", (sizes.k_width,), window=self.window)
        t.cache("kv", "value", (sizes.v_width,), window=self.window)
        out = attend(
            t, q, k, v, sizes, dropout=self.dropout, softcap=self.softcap, sinks=self.sinks, wide=self.wide_softmax, window=self.window
        )  # fmt: skip
        out = linear(t, out, self.names[3], Dim("h", self.hidden), bias=self.out_bias)
        return ops.dropout(t, out, self.out_dropout)

    def _project(self, t: Tape, x: Value, sizes: Heads) -> tuple[Value, Value, Value]:
        widths = (sizes.q_width, sizes.k_width, sizes.k_width)
        if self.fused_qkv:
            joined = linear(t, x, self.fused_qkv, Dim("(A+2K)", sum(w.size for w in widths)), bias=self.qkv_bias)
            dims = [(*x.dims[:-1], w) for w in widths]
            q, k, v = ops.split(t, joined, dims) if self.fused_split else (ops.narrow(t, joined, d) for d in dims)
        else:
            q, k, v = (linear(t, x, name, width, bias=self.qkv_bias) for name, width in zip(self.names[:3], widths, strict=True))
        return q, k, v

    def _positions(self, t: Tape, x: Value, heads: int) -> Value:
        if self.rotary_dim:
            return partial_rotary(t, x, Dim("a" if heads == self.heads else "k", heads), self.head_dim, self.rotary_dim)
        return rotary(t, x, wide=self.rope_wide)

    def _norms(self, t: Tape, q: Value, k: Value) -> tuple[Value, Value]:
        if not self.qk_norm:
            return q, k
        return self._norm(t, q, self.qk_norm_names[0], Dim("a", self.heads)), self._norm(t, k, self.qk_norm_names[1], Dim("k", self.kv_heads))

    def _norm(self, t: Tape, x: Value, leaf: str, heads: Dim) -> Value:
        norm = Norm(self.qk_norm_kind, self.qk_norm_style, bias=self.qk_norm != "each")
        if self.qk_norm == "all":
            return norm.forward(t, x, leaf)
        width = Dim("d", self.head_dim)
        if self.qk_norm == "each":
            parts = ops.split(t, x, [(*x.dims[:-1], width)] * heads.size)
            with t.scope(leaf):
                return ops.cat(t, [norm.forward(t, part, f"norms.{index}") for index, part in enumerate(parts)], x.dims)
        by_head = ops.view(x, (*x.dims[:-1], heads, width))
        weight = (heads, width) if self.qk_norm_style == "written" else ()
        return ops.view(norm.forward(t, by_head, leaf, weight), x.dims)


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
    sinks: bool = False,
    scores: Dim = SCORES,
    wide: bool = True,
    window: int = 0,
) -> Value:
    """softmax(q·kᵀ)·v with the chosen kernel: q (n, A), k (n, K), v (n, Kv) -> (n, Av).

    `scores`: query-key pairs of one head; `wide`: eager softmax runs in fp32, as in most decoders. Soft caps and sinks are not in SDPA: HF
    then runs the eager path.
    """
    kernels = t.setup.kernels
    if kernels.attention == "eager" or (kernels.attention == "sdpa" and (softcap or sinks)):
        return _eager(t, q, k, v, sizes, dropout, softcap, sinks, scores, wide)
    masked = kernels.attention == "sdpa" and (kernels.masked or bool(window and t.setup.past_window))
    if kernels.repeat_kv or masked:
        k = repeat_kv(t, k, sizes.a, sizes.k, sizes.q_width)
        v = repeat_kv(t, v, sizes.a, sizes.k, sizes.out_width)
    if kernels.device == "cpu" and (t.setup.rate(dropout) or sizes.d != sizes.dv):
        return _math(t, q, k, v, sizes, dropout, scores)
    return _fused(t, q, k, v, sizes, t.new("attention mask", (scores,), q.dtype, False) if masked else None)


def _eager(
    t: Tape, q: Value, k: Value, v: Value, sizes: Heads, rate: float, softcap: bool, sinks: bool, pairs: Dim = SCORES, wide: bool = True
) -> Value:
    """transformers `eager_attention_forward`: the score matrix is written out and softmax runs in fp32 (`wide`) or in the type of the scores."""
    k = repeat_kv(t, k, sizes.a, sizes.k, sizes.q_width)
    v = repeat_kv(t, v, sizes.a, sizes.k, sizes.out_width)
    scores_dims: Dims = (Dim("a", sizes.a), pairs)
    scores = ops.scale(t, ops.matmul(t, _by_head(t, q), _by_head(t, k), scores_dims))
    if softcap:
        scores = ops.scale(t, ops.unary(t, "tanh", ops.scale(t, scores), keeps="output"))
    scores = ops.unary(t, "add mask", scores, keeps="nothing")
    weights = ops.cast(t, ops.softmax(t, scores, FP32 if wide else None), q.dtype)
    weights = ops.dropout(t, weights, rate)
    out = ops.matmul(t, weights, _by_head(t, v), (q.dims[0], sizes.out_width))
    return ops.contiguous(t, out)


def _by_head(t: Tape, x: Value) -> Value:
    """A batched product lays its factors out by head first: a copy, unless there is one sequence or repeat_kv or a cast did so already."""
    if t.setup.single or x.storage.what in ("repeat", "cat") or (t.setup.compute is not None and x.dtype != t.setup.compute):
        return x
    return ops.contiguous(t, x)


def _math(t: Tape, q: Value, k: Value, v: Value, sizes: Heads, rate: float, pairs: Dim) -> Value:
    """SDPA out of plain operations, in fp32: where no fused kernel can run, as on the CPU with dropout
    (ATen native/transformers/attention.cpp `_scaled_dot_product_attention_math`)."""
    origin = q.dtype if t.setup.compute is None else t.setup.compute
    q, k, v = (ops.cast(t, ops.autocast(t, x), FP32) for x in (q, k, v))
    q = ops.scale(t, q)
    k = ops.scale(t, repeat_kv(t, k, sizes.a, sizes.k, sizes.q_width))
    v = repeat_kv(t, v, sizes.a, sizes.k, sizes.out_width)
    scores = _product(t, q, k, (Dim("a", sizes.a), pairs))
    weights = ops.dropout(t, ops.softmax(t, scores, FP32), rate)
    out = ops.cast(t, _product(t, weights, v, (q.dims[0], sizes.out_width)), origin)
    return ops.contiguous(t, out)


def _product(t: Tape, a: Value, b: Value, dims: Dims) -> Value:
    """A batched product that autocast does not reach."""
    out = t.new("matmul", dims, a.dtype, a.grad or b.grad)
    t.step("matmul", (a, b), (out,), saved=([b] if a.grad else []) + ([a] if b.grad else []))
    return out


def _fused(t: Tape, q: Value, k: Value, v: Value, sizes: Heads, mask: Value | None = None) -> Value:
    """SDPA or flash attention: keeps q, k, v, its result and the log-sum-exp of each row; and the mask, which every call turns from bool into
    the type of q (ATen native/transformers/attention.cpp `convert_boolean_attn_mask`).

    CUDA's flash backward also makes an fp32 accumulator of dq, one fp32 number a row, and keys' and values' gradients for every query
    head when heads are grouped (flash-attention csrc/flash_attn/flash_api.cpp mha_bwd: dq_accum, softmax_d, dk_expanded, dv_expanded).
    """
    q, k, v = ops.autocast(t, q), ops.autocast(t, k), ops.autocast(t, v)
    dims = (q.dims[0], sizes.out_width)
    out = t.new("attention", dims, q.dtype, any(x.grad for x in (q, k, v)))
    lse = t.new("logsumexp", (q.dims[0], Dim("a", sizes.a)), FP32, False)
    hidden = Size()
    if t.setup.kernels.device == "cuda" and q.dtype in (BF16, FP16):
        hidden = Size.of(q.dims, FP32) + Size.of(lse.dims, FP32)
        if sizes.k != sizes.a:
            hidden = hidden + Size.of((k.dims[0], sizes.q_width), k.dtype) + Size.of((v.dims[0], sizes.out_width), v.dtype)
    kept = [q, k, v, out, lse] + ([mask] if mask is not None else [])
    t.step("attention", (q, k, v, *kept[5:]), (out, lse), saved=kept, back_scratch=hidden)
    return out
