"""DeepSeek-V4's attention: one key-value head in a sliding window, and beside it compressed entries that stand for many tokens each, all of
them (heavily compressed) or those that an indexer picks (compressed sparse) (modeling_deepseek_v4.py)."""

from __future__ import annotations

from everybyte.basics.dtypes import FP32, INT64
from everybyte.basics.record import Record
from everybyte.layers.attention.indexer import chosen, spread
from everybyte.layers.attention.kernels import SCORES
from everybyte.layers.common.hyper import unweighted_norm
from everybyte.layers.common.linear import linear
from everybyte.layers.common.norm import rms_norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import QUERIES, Axis, B, Dim, Dims, S, Size, T
from everybyte.layers.recording.tape import Made, Tape, Value


class Compressor(Record, frozen=True):
    """One entry for every `rate` tokens: a gated sum over their projections. `overlap`: over those of the window before as well."""

    head_dim: int
    rate: int
    rope: int
    overlap: bool = False

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> entries (w, d) with w = n/rate."""
        twice = 2 if self.overlap else 1
        width, one = Dim("2d" if self.overlap else "d", twice * self.head_dim), Dim("d", self.head_dim)
        kv, gate = linear(t, x, "kv_proj", width), linear(t, x, "gate_proj", width)
        gate = ops.add(t, gate, t.parameter("position_bias", (Dim("rate", self.rate), width), dtype=FP32))
        if self.overlap:
            kv, gate = (ops.cat(t, (v,), (x.dims[0], Dim("2", 2), one)) for v in (kv, gate))
        weights = ops.cast(t, ops.softmax(t, gate, FP32), kv.dtype)
        windows = Dim("w", 1, (B, Axis("s", 0, (1, self.rate))))
        summed = t.new("sum", (windows, one), kv.dtype, kv.grad)
        product = ops.mul(t, kv, weights)
        t.step("sum", (product,), (summed,), made=[Made(product, None)])
        entries = rms_norm(t, summed, "kv_norm", style="wide")
        self._remember(t, width, one)
        return turned(t, entries, Dim("1", 1), self.head_dim, self.rope, windows)

    def _remember(self, t: Tape, width: Dim, one: Dim) -> None:
        """The entries; the tokens of a window that is not full yet, as many as there can be; of the last full window what the next one reads."""
        t.cache("kv", "compressed", (one,), every=self.rate)
        for name in ("waiting", "waiting gate"):
            t.cache("state", name, (Dim("(rate-1)", self.rate - 1), width))
        if self.overlap:
            t.cache("state", "overlap", (Dim("rate", self.rate), one))
            t.cache("state", "overlap gate", (Dim("rate", self.rate), one), FP32)


class CompressedIndexer(Record, frozen=True):
    """Scores of every query for every compressed entry; the choice keeps nothing."""

    heads: int
    head_dim: int
    top_k: int
    compressor: Compressor

    def forward(self, t: Tape, x: Value, latent: Value) -> Value:
        """x (n, h), latent (n, r_q) -> positions of the chosen entries."""
        entries = self.compressor.forward(t, x)
        heads, width = Dim("H", self.heads), Dim("H·d_i", self.heads * self.head_dim)
        q = ops.cast(t, linear(t, latent, "q_b_proj", width), FP32)
        pairs = Dim("b·s·w", 1, (B, S, Axis("s", 0, (1, self.compressor.rate))))
        entries = ops.cast(t, entries, FP32)
        scores = ops.matmul(t, q, spread(t, entries, (pairs, Dim("d_i", self.head_dim))), (pairs, heads))
        t.drop(q, entries)
        scores = ops.scale(t, ops.unary(t, "relu", scores, keeps="nothing"))
        with t.scope("scorer", scores):
            weights = ops.scale(t, ops.cast(t, linear(t, x, "weights_proj", heads), FP32))
            summed = t.new("sum", (pairs,), FP32, False)
            t.step("sum", (ops.mul(t, scores, weights),), (summed,))
        return chosen(t, summed, x, self.top_k)


class CompressedAttention(Record, frozen=True):
    """Queries through a latent, one key that is also the value, a grouped projection back."""

    hidden: int
    heads: int
    head_dim: int
    q_rank: int
    rope: int
    window: int
    groups: int
    out_rank: int
    compressor: Compressor | None = None
    indexer: CompressedIndexer | None = None

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        rows, heads, width = x.dims[:-1], Dim("a", self.heads), Dim("A", self.heads * self.head_dim)
        latent = rms_norm(t, linear(t, x, "q_a_proj", Dim("r_q", self.q_rank)), "q_a_norm", style="wide")
        q = ops.view(linear(t, latent, "q_b_proj", width), (*rows, heads, Dim("d", self.head_dim)))
        q = turned(t, ops.view(unweighted_norm(t, q), (*rows, width)), heads, self.head_dim, self.rope, QUERIES)
        kv = rms_norm(t, linear(t, x, "kv_proj", Dim("d", self.head_dim)), "kv_norm", style="wide")
        kv = turned(t, kv, Dim("1", 1), self.head_dim, self.rope, QUERIES)
        # beside compressed entries keys and values are one tensor, else two (DeepseekV4HCACache, DynamicSlidingWindowLayer)
        for name in ("key",) if self.compressor is not None else ("key", "value"):
            t.cache("kv", name, (Dim("d", self.head_dim),), window=self.window)
        entries = None
        if self.compressor is not None:
            with t.scope("compressor", q, kv, latent):
                entries = self.compressor.forward(t, x)
                if self.indexer is not None:
                    with t.scope("indexer", entries), t.silence():
                        self.indexer.forward(t, x, latent)
        out = self._attend(t, q, kv, entries, t.parameter("sinks", (heads,), dtype=FP32))
        out = turned(t, out, heads, self.head_dim, self.rope, QUERIES)
        return self._project_back(t, ops.contiguous(t, out))

    def _attend(self, t: Tape, q: Value, kv: Value, entries: Value | None, sinks: Value) -> Value:
        """Eager attention over the window's keys and the compressed entries, with a learned logit a head beside the scores."""
        heads = Dim("a", self.heads)
        axes = [T] + ([Axis("s", 0, (1, self.compressor.rate))] if self.compressor is not None else [])
        keys: Dims = (Dim("b·t", 1, (B, T)), Dim("A", self.heads * self.head_dim))
        key_size = Size.total(Size.of((Dim("", 1, (B, axis)), keys[1]), kv.dtype) for axis in axes)
        pairs: Dims = (heads, Dim("b·s·t", 1, (B, S, T)))

        def scores_size(extra: bool, dtype: object) -> Size:
            wide = FP32 if dtype is FP32 else q.dtype
            sizes = [Size.of((heads, Dim("", 1, (B, S, axis))), wide) for axis in axes]
            return Size.total([*sizes, Size.of((heads, Dim("", 1, (B, S))), wide)] if extra else sizes)

        def one(what: str, size: Size, dims: Dims, wide: bool = False) -> Value:
            return ops.sized(t, what, size, Value(q.storage, dims, FP32 if wide else q.dtype, q.grad or kv.grad))

        t.share("attention mask", (SCORES,), t.setup.weights)
        inputs = (kv,) if entries is None else (kv, entries)
        if entries is not None:
            masks = Size.total(Size.of((Dim("", 1, (B, S, axis)),), q.dtype) for axis in axes)
            mask = ops.sized(t, "attention mask", masks, Value(q.storage, (SCORES,), q.dtype, grad=False))
            t.step("cat", (), (mask,))
            t.hold(mask)
            joined = one("cat", Size.total(Size.of((Dim("", 1, (B, axis)), Dim("d", self.head_dim)), kv.dtype) for axis in axes), kv.dims)
            t.step("cat", inputs, (joined,), made=[Made(v, None) for v in inputs])
            inputs = (joined,)
        k, v = (self._repeated(t, inputs[0], one("repeat", key_size, keys)) for _ in "kv")
        flat, full = scores_size(extra=False, dtype=q.dtype), scores_size(extra=True, dtype=FP32)
        scores, masked = one("matmul", flat, pairs), one("add mask", flat, pairs)
        t.step("matmul", (q, k), (scores,), saved=(q, k), made=[Made(q, Size.of(q.dims, q.dtype)), Made(k, key_size)])
        t.step("add mask", (scores,), (masked,), made=[Made(scores, None)])
        row: Dims = (heads, Dim("b·s", 1, (B, S)))
        wider, shifted, weights = (one(what, full, pairs, wide=True) for what in ("cat", "sub", "softmax"))
        t.step("cat", (masked, sinks), (wider,), made=[Made(masked, flat), Made(sinks, Size.of(sinks.dims, FP32))])
        highest, places = t.new("max", row, FP32, wider.grad), t.new("max positions", row, INT64, False)
        t.step("max", (wider,), (highest, places), saved=(places,), made=[Made(wider, full)])
        t.step("sub", (wider, highest), (shifted,), made=[Made(wider, None), Made(highest, Size.of(row, FP32))])
        t.step("softmax", (shifted,), (weights,), saved=(weights,), made=[Made(shifted, full)])
        cut = one("to", flat, pairs)
        t.step("to", (weights,), (cut,), made=[Made(weights, full)])
        out = t.new("matmul", q.dims, q.dtype, cut.grad)
        t.step("matmul", (cut, v), (out,), saved=(cut, v), made=[Made(cut, flat), Made(v, key_size)])
        return ops.contiguous(t, out)

    @staticmethod
    def _repeated(t: Tape, kv: Value, copy: Value) -> Value:
        """The one head for every query head: a view of which a product makes a copy, unless there is one sequence."""
        if t.setup.single:
            copy = Value(kv.storage, copy.dims, copy.dtype, copy.grad)
        t.step("repeat", (kv,), (copy,))
        return copy

    def _project_back(self, t: Tape, x: Value) -> Value:
        """Each of `groups` parts of the heads through its own matrix, then one projection (DeepseekV4GroupedLinear)."""
        rank, inside = Dim("g·r_o", self.groups * self.out_rank), Dim("A/g", self.heads * self.head_dim // self.groups)
        with t.scope("o_a_proj"):
            weight = t.parameter("weight", (rank, inside))
            x, weight = ops.autocast(t, x), ops.autocast(t, weight)
            out = t.new("bmm", (x.dims[0], rank), x.dtype, x.grad or weight.grad)
            t.step("bmm", (x, weight), (out,), saved=([weight] if x.grad else []) + ([x] if weight.grad else []))
        # the groups come out side by side and are laid in a row
        return linear(t, ops.contiguous(t, out), "o_b_proj", Dim("h", self.hidden))


def turned(t: Tape, x: Value, heads: Dim, head_dim: int, rope: int, positions: Dim) -> Value:
    """The last `rope` numbers of every head turn in fp32; cos and sin are spread anew at each call and kept."""
    rows: Dims = (*x.dims[:-1], heads)
    straight, part = ops.narrow(t, x, (*rows, Dim("d_n", head_dim - rope))), ops.narrow(t, x, (*rows, Dim("d_r", rope)))
    tables = [ops.made(t, what, (positions, Dim("d_r", rope)), t.setup.weights) for what in ("cos", "sin")]
    half = ops.unary(t, "rotate_half", part, keeps="nothing")
    left, right = (ops.mul(t, ops.cast(t, v, FP32), table) for v, table in zip((part, half), tables, strict=True))
    return ops.cat(t, (straight, ops.cast(t, ops.add(t, left, right), x.dtype)), x.dims)
