"""Attention layers: projections, norms of queries and keys, rotary positions."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Literal

from everybyte.basics.dtypes import FP32
from everybyte.basics.record import Record
from everybyte.layers.attention.kernels import SCORES, Heads, attend
from everybyte.layers.common.linear import linear
from everybyte.layers.common.norm import Norm
from everybyte.layers.common.prompts import prefixed
from everybyte.layers.common.rope import Tables, partial_rotary, rotary, rotary_complex, stretched, table_dtype
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import KEY_TOKENS, QUERIES, Dim
from everybyte.layers.recording.tape import Tape, Value


class Projections(Record, frozen=True):
    """The linear layers of attention: one for q, k and v each or one joined, and the last one."""

    qkv_bias: bool = False
    out_bias: bool = False
    fused: str = ""
    """Name of one joined projection (`qkv_proj`), empty for three."""
    split: bool = False
    """Parts of the joined projection come from one split (GPT-2, NeoX), not from three slices (Phi-3)."""
    copies: bool = False
    """Each of those parts is copied into a tensor of its own (torchtitan); a compiler that turns q and k in one kernel copies them there."""
    clip: bool = False
    """Projections are clamped to a range: the joined one before it is split (DBRX), three in place (OLMo)."""
    names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj")


class Rotary(Record, frozen=True):
    """How positions are applied to q and k."""

    dim: int = 0
    """Numbers of a head that turn, where the turned part is cut out and joined again; 0: the whole head at once."""
    by_token: bool = False
    """The turned part is joined again while heads are side by side in every token (GPT-J)."""
    tables: Literal["", "layer", "call"] = ""
    """cos and sin are stretched once for q and k of every layer (GLM), or for each of them (GPT-J), and kept; else made once for all layers."""
    inline: bool = False
    """The parts that turn and those that do not are local variables of the attention (Phi, StableLM)."""
    cast_back: bool = False
    """What positions are applied to is cast back to the type that it had (OLMo)."""
    wide: bool = False
    """Positions are applied in fp32 and the result is cast back (Cohere)."""
    complex: bool = False
    """Rotation as a product of complex numbers in fp32 (Llama 4, DeepSeek-V2)."""


class QkNorm(Record, frozen=True):
    """Norms of queries and keys."""

    over: Literal["", "head", "all", "each"] = ""
    """`head`: a norm over each head; `all`: over the whole projection; `each`: one module a head (StableLM); empty for none."""
    style: str = "llama"
    kind: str = "rms"
    names: tuple[str, str] = ("q_norm", "k_norm")
    late: bool = False
    """The norms follow the positions (Hunyuan)."""


class Scores(Record, frozen=True):
    """What is particular about the product of queries and keys, and about its softmax."""

    scaled_query: bool = False
    """The query is multiplied by 1/√d on its own, before the product with the keys (OPT)."""
    softcap: bool = False
    sinks: bool = False
    """One learned logit a head joins the scores (gpt-oss)."""
    temperature: Literal["", "fp32", "own"] = ""
    """Queries are multiplied by a factor that grows with their position (Llama 4, in layers without positions)."""
    wide_products: bool = False
    """Eager scores are products of fp32 copies of q and k (GPT-J)."""
    wide_softmax: bool = True
    """Eager softmax runs in fp32; False: in the type of the scores (GPT-2)."""
    shifted: bool = False
    """Eager scores lose their row's maximum first (MiMo-V2)."""


class Attention(Record, frozen=True):
    """Self-attention with grouped heads, as the Llama family writes it; options cover its relatives."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    projections: Projections = Projections()
    rotary: Rotary | None = Rotary()
    """None where no positions are applied to queries and keys."""
    qk_norm: QkNorm = QkNorm()
    scores: Scores = Scores()
    v_dim: int = 0
    """Width of a value head where it differs from head_dim."""
    gate: str = ""
    """What scales the result before the last projection, through a sigmoid: `joined`, made by q_proj beside the queries (Qwen3-Next);
    else the name of a projection to one number a head (Step 3.5)."""
    indexer: Any = None
    """A Layer that chooses blocks of keys to look at; each call then gets a mask of its own (MiniMax-M3)."""
    window: int = 0
    """Each token sees this many back, itself included; 0 for all."""
    dropout: float = 0.0
    out_dropout: float = 0.0
    cached: bool = True
    """Keys and values are stored for decoding; False in the towers of images."""
    causal: bool = True
    """Tokens see what came before alone, so that eager scores always get a mask; False in encoders of text."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        sizes = Heads(self.heads, self.kv_heads, self.head_dim, self.v_dim or self.head_dim)
        gate = None
        if self.gate == "joined":
            q, k, v, gate = self._project_gated(t, x, sizes)
        else:
            q, k, v = self._project(t, x, sizes)
            gate = linear(t, x, self.gate, Dim("a", self.heads)) if self.gate else None
        if not self.qk_norm.late:
            q, k = self._norms(t, q, k)
        if self.scores.scaled_query:
            q = ops.scale(t, q)
        if self.rotary is not None:
            q, k = self._turn(t, self.rotary, q, k)
        if self.qk_norm.late:
            q, k = self._norms(t, q, k)
        if self.scores.temperature:
            factor = ops.made(t, "temperature", (QUERIES,), FP32 if self.scores.temperature == "fp32" else q.dtype)
            q = ops.cast(t, ops.mul(t, q, factor), q.dtype)
        mask = self._mask(t, x)
        if self.cached:
            t.cache("kv", "key", (sizes.k_width,), window=self.window)
            t.cache("kv", "value", (sizes.v_width,), window=self.window)
            k, v = ops.join(t, k, v)
        k, v = prefixed(t, k, sizes.k_width, KEY_TOKENS), prefixed(t, v, sizes.v_width, KEY_TOKENS)
        t.hold(q, k, v)
        sinks = t.parameter("sinks", (Dim("a", self.heads),)) if self.scores.sinks else None
        out = attend(
            t,
            q,
            k,
            v,
            sizes,
            dropout=self.dropout,
            softcap=self.scores.softcap,
            sinks=sinks,
            wide=self.scores.wide_softmax,
            window=self.window,
            bias=mask,
            wide_scores=self.scores.wide_products,
            shifted=self.scores.shifted,
            causal=self.causal,
        )
        if gate is not None:
            out = ops.mul(t, out, ops.unary(t, "sigmoid", gate, keeps="output"))
        out = linear(t, out, self.projections.names[3], Dim("h", self.hidden), bias=self.projections.out_bias)
        return ops.dropout(t, out, self.out_dropout)

    def _project(self, t: Tape, x: Value, sizes: Heads) -> tuple[Value, Value, Value]:
        widths = (sizes.q_width, sizes.k_width, sizes.v_width)
        if self.projections.fused:
            joined = linear(t, x, self.projections.fused, Dim("(A+2K)", sum(w.size for w in widths)), bias=self.projections.qkv_bias)
            if self.projections.clip:
                joined = ops.unary(t, "clamp", joined, keeps="input")
            dims = [(*x.dims[:-1], w) for w in widths]
            q, k, v = ops.split(t, joined, dims) if self.projections.split else (ops.narrow(t, joined, d) for d in dims)
            if self.projections.copies:
                q, k = (q, k) if t.setup.kernels.rope == "fused" else (ops.contiguous(t, q), ops.contiguous(t, k))
                v = ops.contiguous(t, v)
        else:
            q, k, v = (linear(t, x, name, width, bias=self.projections.qkv_bias) for name, width in zip(self.projections.names[:3], widths, strict=True))
            if self.projections.clip:
                q, k, v = (ops.clamp_(t, y) for y in (q, k, v))
        return q, k, v

    def _project_gated(self, t: Tape, x: Value, sizes: Heads) -> tuple[Value, Value, Value, Value]:
        """q_proj makes each head's query and gate; the gate is copied into its own order."""
        both = linear(t, x, self.projections.names[0], Dim("2A", 2 * sizes.q_width.size), bias=self.projections.qkv_bias)
        q, gate = ops.split(t, both, [(x.dims[0], sizes.q_width)] * 2)
        gate = ops.contiguous(t, gate)
        k = linear(t, x, self.projections.names[1], sizes.k_width, bias=self.projections.qkv_bias)
        return q, k, linear(t, x, self.projections.names[2], sizes.v_width, bias=self.projections.qkv_bias), gate

    def _mask(self, t: Tape, x: Value) -> Value | None:
        """The mask of the blocks of keys that each query head looks at."""
        if self.indexer is None:
            return None
        with t.scope("indexer", x), t.silence():
            chosen = self.indexer.forward(t, x)
        mask = t.new("attention mask", (Dim("a", self.heads), SCORES), x.dtype, False)
        t.step("attention mask", (chosen,), (mask,))
        return mask

    def _positions(self, t: Tape, rope: Rotary, x: Value, heads: int, tables: Tables | None = None) -> Value:
        if rope.complex:
            return rotary_complex(t, x)
        if rope.dim:
            if rope.tables == "call":
                tables = stretched(t, rope.dim, table_dtype(t, x))
            letter = Dim("a" if heads == self.heads else "k", heads)
            return partial_rotary(t, x, letter, self.head_dim, rope.dim, by_token=rope.by_token, tables=tables, inline=rope.inline)
        return rotary(t, x, tables=tables)

    def _turn(self, t: Tape, rope: Rotary, q: Value, k: Value) -> tuple[Value, Value]:
        """Applies positions to q and k, which the caller holds as long as that takes."""
        with nullcontext() if rope.inline else t.scope("", q, k):
            arrived = q.dtype
            tables = None
            if rope.tables == "layer":
                tables = stretched(t, rope.dim or self.head_dim, FP32 if rope.wide else table_dtype(t, q))
            if rope.wide:
                q, k = ops.cast(t, q, FP32), ops.cast(t, k, FP32)
                t.hold(q, k)
            q, k = self._positions(t, rope, q, self.heads, tables), self._positions(t, rope, k, self.kv_heads, tables)
            if rope.wide or rope.cast_back:
                t.hold(q, k)
                q, k = ops.cast(t, q, arrived), ops.cast(t, k, arrived)
        return q, k

    def _norms(self, t: Tape, q: Value, k: Value) -> tuple[Value, Value]:
        if not self.qk_norm.over:
            return q, k
        return self._norm(t, q, self.qk_norm.names[0], Dim("a", self.heads)), self._norm(t, k, self.qk_norm.names[1], Dim("k", self.kv_heads))

    def _norm(self, t: Tape, x: Value, leaf: str, heads: Dim) -> Value:
        norm = Norm(self.qk_norm.kind, self.qk_norm.style, bias=self.qk_norm.over != "each")
        if self.qk_norm.over == "all":
            return norm.forward(t, x, leaf)
        width = Dim("d", self.head_dim)
        if self.qk_norm.over == "each":
            parts = ops.split(t, x, [(*x.dims[:-1], width)] * heads.size)
            with t.scope(leaf):
                return ops.cat(t, [norm.forward(t, part, f"norms.{index}") for index, part in enumerate(parts)], x.dims)
        by_head = ops.view(x, (*x.dims[:-1], heads, width))
        weight = (heads, width) if self.qk_norm.style == "written" else ()
        return ops.view(norm.forward(t, by_head, leaf, weight), x.dims)
