"""Gated delta rule: linear attention whose state is decayed and corrected token by token, run over chunks of 64 (modeling_qwen3_next.py)."""

from __future__ import annotations

from everybyte.basics.dtypes import BOOL, FP32
from everybyte.basics.record import Record
from everybyte.layers.common.linear import linear
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import SEQUENCES, Axis, B, Dim, Dims, Size
from everybyte.layers.recording.tape import Made, Tape, Value
from everybyte.layers.recurrent.causal_conv import causal_conv

CHUNK = 64


class GatedDeltaNet(Record, frozen=True):
    """out(norm(delta(conv(q, k, v), g, β))·silu(z)). Sizes: k key heads of d_k, v value heads of d_v."""

    hidden: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    joined: bool = True
    """q, k, v and z come from one projection, b and a from another (Qwen3-Next); else from four (Qwen3.5)."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        rows, keys, values = x.dims[:-1], Dim("K", self.key_heads * self.key_dim), Dim("V", self.value_heads * self.value_dim)
        heads = Dim("v", self.value_heads)
        mixed, z, b, a = self._project(t, x, keys, values, heads)
        mixed = causal_conv(t, mixed, "conv1d", self.kernel, bias=False)
        q, k, v = ops.split(t, mixed, [(*rows, keys), (*rows, keys), (*rows, values)])
        beta = ops.unary(t, "sigmoid", b, keeps="output")
        decay = self._decay(t, a, heads)
        t.cache("state", "recurrent", (heads, Dim("d_k", self.key_dim), Dim("d_v", self.value_dim)), FP32)
        rule = DeltaRule(self.key_heads, self.value_heads, self.key_dim, self.value_dim)
        out = rule.fused(t, q, k, v, decay, beta) if t.setup.kernels.scan == "fused" else rule.chunked(t, q, k, v, decay, beta)
        out = gated_norm(t, ops.view(out, (*rows, heads, Dim("d_v", self.value_dim))), z)
        return linear(t, ops.view(out, (*rows, values)), "out_proj", Dim("h", self.hidden))

    def _project(self, t: Tape, x: Value, keys: Dim, values: Dim, heads: Dim) -> tuple[Value, Value, Value, Value]:
        """What the convolution reads, z, b and a."""
        rows = x.dims[:-1]
        channels = Dim("C", 2 * keys.size + values.size)
        if not self.joined:
            mixed, z = linear(t, x, "in_proj_qkv", channels), linear(t, x, "in_proj_z", values)
            return mixed, z, linear(t, x, "in_proj_b", heads), linear(t, x, "in_proj_a", heads)
        first = linear(t, x, "in_proj_qkvz", Dim("(2K+2V)", channels.size + values.size))
        second = linear(t, x, "in_proj_ba", Dim("2v", 2 * heads.size))
        q, k, v, z = ops.split(t, first, [(*rows, d) for d in (keys, keys, values, values)])
        b, a = ops.split(t, second, [(*rows, heads)] * 2)
        # the parts of every key head lie together, so that each part is copied into its own order
        q, k, v, z, b, a = (ops.contiguous(t, part) for part in (q, k, v, z, b, a))
        return ops.cat(t, (q, k, v), (*rows, channels)), z, b, a

    def _decay(self, t: Tape, a: Value, heads: Dim) -> Value:
        """g = -exp(A_log)·softplus(a + dt_bias) in fp32."""
        rate = ops.unary(t, "exp", ops.cast(t, t.parameter("A_log", (heads,)), FP32), keeps="output")
        rate = ops.unary(t, "neg", rate, keeps="nothing")
        step = ops.unary(t, "softplus", ops.add(t, ops.cast(t, a, FP32), t.parameter("dt_bias", (heads,))))
        return ops.mul(t, rate, step)


def gated_norm(t: Tape, x: Value, gate: Value, leaf: str = "norm", activation: str = "silu", *, wide: bool = False) -> Value:
    """RMSNorm of each head, then a product with the activated gate in fp32. `wide`: the weight is applied in fp32 too (Kimi Linear)."""
    with t.scope(leaf):
        weight = t.parameter("weight", (x.dims[-1],))
        full = ops.cast(t, x, FP32)
        squares = ops.mean(t, ops.power(t, full), x.dims[:-1])
        rate = ops.unary(t, "rsqrt", ops.unary(t, "add", squares, keeps="nothing"), keeps="output")
        normal = ops.mul(t, full, rate)
        normal = ops.mul(t, ops.cast(t, weight, FP32), normal) if wide else ops.mul(t, weight, ops.cast(t, normal, x.dtype))
        keeps = "input" if activation == "silu" else "output"
        gate = ops.view(ops.cast(t, gate, FP32), x.dims)
        return ops.cast(t, ops.mul(t, normal, ops.unary(t, activation, gate, keeps=keeps)), x.dtype)


class DeltaRule(Record, frozen=True):
    """The rule itself, in plain operations or as fla's kernel."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    def _dims(self) -> tuple[Dim, Dim, Dim]:
        return Dim("v", self.value_heads), Dim("v·d_k", self.value_heads * self.key_dim), Dim("V", self.value_heads * self.value_dim)

    def fused(self, t: Tape, q: Value, k: Value, v: Value, decay: Value, beta: Value) -> Value:
        """fla's `chunk_gated_delta_rule`: keeps normalised q and k with their norms, v, the summed decay, β and one matrix a chunk
        (ops/gated_delta_rule/chunk.py ChunkGatedDeltaRuleFunction)."""
        rows, (heads, _, values) = q.dims[:-1], self._dims()
        out = t.new("gated_delta_rule", (*rows, values), v.dtype, any(x.grad for x in (q, k, v, decay, beta)))
        kept = [t.new("l2norm", x.dims, x.dtype, False) for x in (q, k)]
        kept += [t.new("rstd", (*rows, Dim("k", self.key_heads)), FP32, False) for _ in range(2)]
        kept += [t.new("summed decay", (*rows, heads), FP32, False), t.new("A", (*rows, heads, Dim("l", CHUNK)), k.dtype, False)]
        states = Size.of((chunks(), heads, Dim("d_k", self.key_dim), Dim("d_v", self.value_dim)), k.dtype)
        sides = Size.of((*rows, values), v.dtype) * 2 + Size.of((*rows, heads, Dim("d_k", self.key_dim)), k.dtype)
        t.step("gated_delta_rule", (q, k, v, decay, beta), (out, *kept), saved=(v, beta, *kept), scratch=states + sides, back_scratch=states * 2 + sides)
        return out

    def chunked(self, t: Tape, q: Value, k: Value, v: Value, decay: Value, beta: Value) -> Value:
        """`torch_chunk_gated_delta_rule`: everything in fp32, sequences padded to whole chunks."""
        rows, (heads, keys, values) = q.dims[:-1], self._dims()
        padded = Dim("n'", CHUNK, chunks().axes)
        if self.key_heads != self.value_heads:
            q, k = (ops.repeat(t, x, (*rows, keys)) for x in (q, k))
        q, k, v, beta = (ops.cast(t, x, FP32) for x in (q, k, v, beta))
        decay = ops.contiguous(t, decay)
        q, k = (l2norm(t, ops.view(x, (*rows, heads, Dim("d_k", self.key_dim)))) for x in (q, k))
        q = ops.scale(t, q)
        q, k, v, beta, decay = (pad(t, x, (padded, *x.dims[len(rows) :])) for x in (q, k, v, beta, decay))
        v_beta, k_beta = ops.mul(t, v, beta), ops.mul(t, k, beta)
        summed = ops.unary(t, "cumsum", decay, keeps="nothing")
        pairs = (padded, heads, Dim("l", CHUNK))
        pairwise = _pairwise_decay(t, summed, pairs)
        system = ops.mul(t, ops.matmul(t, k_beta, k, pairs), pairwise)
        near = ops.mul(t, ops.matmul(t, q, k, pairs), pairwise)
        decayed = ops.mul(t, k_beta, ops.unary(t, "exp", summed, keeps="output"))
        fresh, corrections = _solve(t, system, v_beta), _solve(t, system, decayed)
        q = ops.mul(t, q, ops.unary(t, "exp", summed, keeps="output"))
        k = ops.mul(t, k, ops.unary(t, "exp", ops.add(t, summed, summed), keeps="output"))
        out = self._recurrence(t, q, k, near, fresh, corrections, summed)
        cut = Value(out.storage, (*rows, values), FP32, out.grad)
        t.step("narrow", (out,), (cut,), made=[Made(out, out.storage.size)])
        dtype = t.setup.compute or t.setup.weights
        return ops.contiguous(t, cut) if dtype == FP32 else ops.cast(t, cut, dtype)

    def _recurrence(self, t: Tape, q: Value, k: Value, near: Value, fresh: Value, corrections: Value, summed: Value) -> Value:
        """The loop over chunks: each keeps the state that it starts from and its corrected values."""
        heads, count = Dim("v", self.value_heads), chunks()
        last = Value(summed.storage, (count, heads), FP32, summed.grad)
        t.step("narrow", (summed,), (last,), made=[Made(summed, Size.of(summed.dims, FP32))])
        rate = ops.unary(t, "exp", last, keeps="output")
        states = t.new("states", (count, heads, Dim("d_k", self.key_dim), Dim("d_v", self.value_dim)), FP32, False)
        corrected = t.new("corrected values", fresh.dims, FP32, False)
        out = t.new("delta rule", fresh.dims, FP32, fresh.grad)
        inputs = (q, k, near, fresh, corrections, rate)
        one = Size.of((SEQUENCES, heads, Dim("d_k", self.key_dim), Dim("d_v", self.value_dim)), FP32)
        t.step("recurrence", inputs, (out, states, corrected), saved=(q, k, near, corrections, rate, states, corrected), scratch=one * 2, back_scratch=one * 3)
        return out


def chunks() -> Dim:
    """c: chunks of all sequences; the last of each is padded."""
    return Dim("c", 1, (B, Axis("s", 0, (1, CHUNK))))


def l2norm(t: Tape, x: Value) -> Value:
    """x over its length (`x·rsqrt((x·x).sum())`): keeps x and one number a row."""
    squares = t.new("mul", x.dims, x.dtype, x.grad)
    t.step("mul", (x, x), (squares,), saved=(x,), back_scratch=Size.of(x.dims, x.dtype))
    summed = t.new("sum", x.dims[:-1], x.dtype, x.grad)
    t.step("sum", (squares,), (summed,), made=[Made(squares, None)])
    return ops.mul(t, x, ops.unary(t, "rsqrt", ops.unary(t, "add", summed, keeps="nothing"), keeps="output"))


def pad(t: Tape, x: Value, dims: Dims) -> Value:
    """`F.pad` to whole chunks: always a new tensor; its backward cuts a view."""
    out = t.new("pad", dims, x.dtype, x.grad)
    t.step("pad", (x,), (out,), made=[Made(x, None)])
    return out


def _pairwise_decay(t: Tape, summed: Value, dims: Dims) -> Value:
    """exp of the differences of the summed decay within each chunk, masked: keeps the mask and the result."""
    spread = t.new("sub", dims, FP32, summed.grad)
    t.step("sub", (summed,), (spread,), made=[Made(summed, Size.of(dims, FP32))])
    mask = t.new("mask", (Dim("l²", CHUNK * CHUNK),), BOOL, False)
    masked = t.new("masked_fill", dims, FP32, summed.grad)
    t.step("masked_fill", (spread,), (masked, mask), saved=(mask,))
    return ops.unary(t, "exp", masked, keeps="output")


def _solve(t: Tape, system: Value, right: Value) -> Value:
    """`torch.linalg.solve_triangular`: keeps the matrix and the solution."""
    out = t.new("solve_triangular", right.dims, FP32, system.grad or right.grad)
    t.step("solve_triangular", (system, right), (out,), saved=(system, out), back_scratch=Size.of(system.dims, FP32))
    return out
