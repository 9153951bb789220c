"""Kimi delta attention: the gated delta rule with a decay for every number of a key, run over chunks of 64 (modeling_kimi_linear.py)."""

from __future__ import annotations

from everybyte.basics.dtypes import BOOL, FP32
from everybyte.basics.record import Record
from everybyte.layers.common.linear import linear
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import SEQUENCES, Dim, Dims, Size
from everybyte.layers.recording.tape import Made, Tape, Value
from everybyte.layers.recurrent.causal_conv import causal_conv
from everybyte.layers.recurrent.delta_net import CHUNK, chunks, gated_norm, l2norm, pad

ROWS = sum(i * i + i for i in range(1, CHUNK))
"""Numbers of the copies `row` and `sub` that the loop over the rows of one chunk's triangular matrix keeps."""


class KimiDeltaAttention(Record, frozen=True):
    """out(norm(delta(conv(q, k, v), g, β), gate)) with `heads` heads of `head_dim`."""

    hidden: int
    heads: int
    head_dim: int
    kernel: int
    full_gate: bool = False
    """The output gate is one projection (Kimi K3), not one through a rank of head_dim."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        rows, width, heads, narrow = x.dims[:-1], Dim("A", self.heads * self.head_dim), Dim("a", self.heads), Dim("d", self.head_dim)
        parts = [linear(t, x, leaf, width) for leaf in ("q_proj", "k_proj", "v_proj")]
        mixed = ops.cat(t, parts, (*rows, Dim("3A", 3 * width.size)))
        mixed = causal_conv(t, mixed, "conv1d", self.kernel, bias=False)
        q, k, v = ops.split(t, mixed, [(*rows, width)] * 3)
        decay = self._decay(t, x, width, heads, narrow)
        beta = ops.unary(t, "sigmoid", linear(t, x, "b_proj", heads), keeps="output")
        t.cache("state", "recurrent", (heads, narrow, Dim("d_v", self.head_dim)), FP32)
        out = self._fused(t, q, k, v, decay, beta) if t.setup.kernels.scan == "fused" else self._chunked(t, q, k, v, decay, beta)
        gate = linear(t, x, "g_proj", width) if self.full_gate else linear(t, linear(t, x, "g_a_proj", narrow), "g_b_proj", width)
        out = gated_norm(t, ops.view(out, (*rows, heads, narrow)), gate, "o_norm", "sigmoid", wide=True)
        return linear(t, ops.view(out, (*rows, width)), "o_proj", Dim("h", self.hidden))

    def _decay(self, t: Tape, x: Value, width: Dim, heads: Dim, narrow: Dim) -> Value:
        """g = -exp(A_log)·softplus(f(x) + dt_bias) in fp32, softplus written out (KimiLinearForgetGate)."""
        with t.scope("forget_gate"):
            step = linear(t, linear(t, x, "f_a_proj", narrow), "f_b_proj", width)
            step = ops.add(t, ops.cast(t, step, FP32), t.parameter("dt_bias", (width,), dtype=FP32))
            rate = ops.unary(t, "exp", ops.cast(t, t.parameter("A_log", (heads,)), FP32), keeps="output")
            logs = ops.unary(t, "log", ops.unary(t, "add", ops.unary(t, "exp", step, keeps="output"), keeps="nothing"))
            large = t.new("mask", step.dims, BOOL, False)
            out = t.new("where", step.dims, FP32, step.grad)
            t.step("where", (step, logs), (out, large), saved=(large,))
            return ops.mul(t, ops.unary(t, "neg", rate, keeps="nothing"), ops.view(out, (*x.dims[:-1], heads, narrow)))

    def _fused(self, t: Tape, q: Value, k: Value, v: Value, decay: Value, beta: Value) -> Value:
        """fla's `chunk_kda`: keeps normalised q and k with their norms, v, the decay and its sums, β, and two matrices a chunk
        (ops/kda/chunk.py ChunkKDAFunction; states and the rest are worked out again in backward)."""
        rows, heads = q.dims[:-1], Dim("a", self.heads)
        out = t.new("chunk_kda", v.dims, v.dtype, any(x.grad for x in (q, k, v, decay, beta)))
        kept = [t.new("l2norm", x.dims, x.dtype, False) for x in (q, k)]
        kept += [t.new("rstd", (*rows, heads), FP32, False) for _ in range(2)]
        kept += [t.new("summed decay", q.dims, FP32, False), *(t.new(name, (*rows, heads, Dim("l", CHUNK)), k.dtype, False) for name in ("Aqk", "Akk"))]
        states = Size.of((chunks(), Dim("A", self.heads * self.head_dim), Dim("d_v", self.head_dim)), k.dtype)
        again = states + Size.of(q.dims, k.dtype) * 5
        t.step("chunk_kda", (q, k, v, decay, beta), (out, *kept), saved=(v, decay, beta, *kept), scratch=again, back_scratch=again + states)
        return out

    def _chunked(self, t: Tape, q: Value, k: Value, v: Value, decay: Value, beta: Value) -> Value:
        """`chunk_kimi_delta_attention`: everything in fp32; decays between each two tokens of a chunk are written out for every number of a key."""
        rows, width = q.dims[:-1], q.dims[-1]
        heads, narrow = Dim("a", self.heads), Dim("d", self.head_dim)
        padded = Dim("n'", CHUNK, chunks().axes)
        q, k, v, beta, decay = (ops.cast(t, ops.contiguous(t, x), FP32) for x in (q, k, v, beta, decay))
        q, k = (l2norm(t, ops.view(x, (*rows, heads, narrow))) for x in (q, k))
        q, k, v, beta, decay = (pad(t, x, (padded, *x.dims[len(rows) :])) for x in (q, k, v, beta, ops.view(decay, (*rows, heads, narrow))))
        q = ops.scale(t, q)
        v_beta, k_beta = ops.mul(t, v, beta), ops.mul(t, k, beta)
        summed = ops.unary(t, "cumsum", decay, keeps="nothing")
        pairs: Dims = (padded, heads, Dim("l", CHUNK))
        between = self._between(t, summed, (*pairs, narrow))
        matrix = self._triangular(t, k_beta, k, between, pairs)
        fresh = ops.matmul(t, matrix, v_beta, v.dims)
        corrections = ops.matmul(t, matrix, ops.mul(t, k_beta, ops.unary(t, "exp", summed, keeps="output")), k.dims)
        out = self._recurrence(t, q, k, summed, between, fresh, corrections)
        cut = Value(out.storage, (*rows, width), FP32, out.grad)
        t.step("narrow", (out,), (cut,), made=[Made(out, out.storage.size)])
        dtype = t.setup.compute or t.setup.weights
        return ops.cast(t, ops.contiguous(t, cut), dtype)

    def _between(self, t: Tape, summed: Value, dims: Dims) -> Value:
        """exp of the differences of the summed decay, masked: (n', a, l, d)."""
        spread, masked = t.new("sub", dims, FP32, summed.grad), t.new("masked_fill", dims, FP32, summed.grad)
        mask = t.new("mask", (Dim("l²", CHUNK * CHUNK),), BOOL, False)
        t.step("sub", (summed,), (spread,), made=[Made(summed, Size.of(dims, FP32))])
        t.step("masked_fill", (spread,), (masked, mask), saved=(mask,))
        return ops.unary(t, "exp", masked, keeps="output")

    def _triangular(self, t: Tape, k_beta: Value, k: Value, between: Value, pairs: Dims) -> Value:
        """-Σ k_β·k·decay below the diagonal, made into the inverse row after row; every row's copies are kept."""
        products = t.new("mul", between.dims, FP32, between.grad)
        whole = Size.of(between.dims, FP32)
        t.step("mul", (k_beta, k), (products,), saved=(k_beta, k), back_scratch=whole)
        weighted = ops.mul(t, products, between)
        out = t.new("sum", pairs, FP32, between.grad)
        t.step("sum", (weighted,), (out,), made=[Made(weighted, None)])
        out = ops.unary(t, "neg", out, keeps="nothing")
        mask = t.new("mask", (Dim("l²", CHUNK * CHUNK),), BOOL, False)
        copies = t.new("rows", (chunks(), Dim("a", self.heads), Dim("Σ(i²+i)", ROWS)), FP32, False)
        solved = Value(out.storage, pairs, FP32, out.grad)
        t.step("rows", (out,), (solved, copies, mask), saved=(copies, mask))
        return ops.unary(t, "add", solved, keeps="nothing")

    def _recurrence(self, t: Tape, q: Value, k: Value, summed: Value, between: Value, fresh: Value, corrections: Value) -> Value:
        """The loop over chunks. What only the next chunk's state needs is not kept for the last one."""
        heads, narrow = Dim("a", self.heads), Dim("d", self.head_dim)
        last = Size.of((SEQUENCES, Dim("l", CHUNK), heads, narrow), FP32)
        all_but_last = Size.of(q.dims, FP32) - last
        rate = Size.of((chunks(), heads, narrow), FP32) - Size.of((SEQUENCES, heads, narrow), FP32)
        kept = [t.new("exp of decay", q.dims, FP32, False)]
        kept += [
            ops.sized(t, what, size, Value(q.storage, q.dims, FP32, grad=False))
            for what, size in (
                ("decayed queries", all_but_last),
                ("rest of decay", all_but_last),
                ("decayed keys", all_but_last),
                ("decay of the chunk", rate),
            )
        ]
        kept += [t.new("products", between.dims, FP32, False), t.new("mask", (Dim("l²", CHUNK * CHUNK),), BOOL, False)]
        kept += [t.new("scores", (q.dims[0], heads, Dim("l", CHUNK)), FP32, False), t.new("corrected values", fresh.dims, FP32, False)]
        kept += [t.new("states", (chunks(), heads, narrow, Dim("d_v", self.head_dim)), FP32, False)]
        out = t.new("delta rule", fresh.dims, FP32, fresh.grad)
        inputs = (q, k, summed, between, fresh, corrections)
        one = Size.of((SEQUENCES, Dim("l", CHUNK), heads, Dim("l", CHUNK), narrow), FP32)
        t.step("recurrence", inputs, (out, *kept), saved=(q, k, between, corrections, *kept), scratch=one, back_scratch=one * 2)
        return out
