"""Mamba-2: a state-space layer whose decay is one number a head, run over chunks of the sequence (modeling_mamba2.py)."""

from __future__ import annotations

from typing import Literal

from everybyte.basics.dtypes import BOOL, FP32, DType
from everybyte.basics.record import Record
from everybyte.layers.common.linear import linear
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Axis, B, Dim, Dims, Size
from everybyte.layers.recording.tape import Made, Storage, Tape, Value
from everybyte.layers.recurrent.causal_conv import causal_conv

GatedNorm = Literal["gate-first", "norm-first", ""]


class Mamba2(Record, frozen=True):
    """out(norm(scan(conv(x, B, C), dt), gate)). Sizes: di = heads·head_dim inner channels, g groups of B and C, N state numbers a channel."""

    hidden: int
    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    chunk: int
    bias: bool = False
    conv_bias: bool = True
    out_bias: bool = False
    norm: GatedNorm = "gate-first"
    """Gated RMSNorm behind the scan: the gate before the norm, after it, or a gate alone (Falcon-H1)."""
    scaled: bool = False
    """Input and projection are multiplied by constants (Falcon-H1)."""

    @property
    def inner(self) -> Dim:
        """di."""
        return Dim("d_i", self.heads * self.head_dim)

    @property
    def channels(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.inner.size + 2 * self.groups * self.state

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        entering = x
        if self.scaled:
            x = ops.scale(t, x)
        joined = linear(t, x, "in_proj", Dim("(2d_i+2gN+a)", self.inner.size + self.channels + self.heads), bias=self.bias)
        if self.scaled:
            joined = ops.scale(t, joined)
        rows = x.dims[:-1]
        decay = _decay(t, Dim("a", self.heads))
        t.cache("state", "recurrent", (Dim("a", self.heads), Dim("p", self.head_dim), Dim("N", self.state)), FP32)
        if t.setup.kernels.scan == "fused":
            return self._fused(t, joined, decay)
        gate, mixed, dt = ops.split(t, joined, [(*rows, d) for d in (self.inner, Dim("C", self.channels), Dim("a", self.heads))])
        mixed = causal_conv(t, mixed, "conv1d", self.kernel, bias=self.conv_bias)
        t.hold(joined, mixed)
        side = Dim("gN", self.groups * self.state)
        inner, b, c = ops.split(t, mixed, [(*rows, d) for d in (self.inner, side, side)])
        out = ChunkScan(self.heads, self.head_dim, self.groups, self.state, self.chunk).forward(t, inner, dt, decay, b, c)
        out = self._gated(t, out, gate, entering.dtype)
        return linear(t, ops.cast(t, out, entering.dtype), "out_proj", Dim("h", self.hidden), bias=self.out_bias)

    def _gated(self, t: Tape, x: Value, gate: Value, dtype: DType) -> Value:
        if not self.norm:
            return ops.mul(t, x, ops.unary(t, "silu", gate))
        with t.scope("norm"):
            if self.norm == "gate-first":
                x = ops.mul(t, x, ops.unary(t, "silu", ops.cast(t, gate, FP32)))
            grouped = ops.view(x, (*x.dims[:-1], Dim("g", self.groups), Dim("d_i/g", self.inner.size // self.groups)))
            squares = ops.mean(t, ops.power(t, grouped), grouped.dims[:-1])
            rate = ops.unary(t, "rsqrt", ops.unary(t, "add", squares, keeps="nothing"), keeps="output")
            normal = ops.view(ops.mul(t, grouped, rate), x.dims)
            out = ops.mul(t, t.parameter("weight", (self.inner,)), normal)
            if self.norm == "norm-first":
                out = ops.mul(t, out, ops.unary(t, "silu", ops.cast(t, gate, FP32)))
            return out

    def _fused(self, t: Tape, joined: Value, decay: Value) -> Value:
        """mamba-ssm's `mamba_split_conv1d_scan_combined`: convolution, scan, norm and last projection are one function, which keeps its input, the
        scan's result and the norm's statistics (ops/triton/ssd_combined.py MambaSplitConv1dScanCombinedFn)."""
        rows, heads, inner, hidden = joined.dims[:-1], Dim("a", self.heads), self.inner, Dim("h", self.hidden)
        weights = [decay, t.parameter("dt_bias", (heads,)), t.parameter("D", (heads,))]
        with t.scope("conv1d"):
            width = Dim("C", self.channels)
            weights.append(t.parameter("weight", (width, Dim("1", 1), Dim("k", self.kernel))))
            weights += [t.parameter("bias", (width,))] if self.conv_bias else []
            t.cache("state", "conv", (width, Dim("k", self.kernel)))
        with t.scope("norm"):
            weights += [t.parameter("weight", (inner,))] if self.norm else []
        with t.scope("out_proj"):
            weights.append(ops.autocast(t, t.parameter("weight", (hidden, inner))))
            weights += [t.parameter("bias", (hidden,))] if self.out_bias else []
        out = t.new("scan", (*rows, hidden), joined.dtype, joined.grad or any(w.grad for w in weights))
        scanned = t.new("scan result", (*rows, inner), joined.dtype, False)
        rate = t.new("rstd", (*rows, Dim("g", self.groups)), FP32, False)
        states = Size.of((_chunks(self.chunk), heads, Dim("p", self.head_dim), Dim("N", self.state)), FP32)
        once = Size.of((*rows, Dim("C", self.channels)), joined.dtype) + states
        t.step(
            "mamba_split_conv1d_scan_combined",
            (joined, *weights),
            (out, scanned, rate),
            saved=(joined, scanned, rate, decay),
            scratch=once,
            back_scratch=once + states + Size.of((*rows, inner), joined.dtype),
        )
        return out


def _decay(t: Tape, heads: Dim) -> Value:
    """A = -exp(A_log) in fp32."""
    return ops.unary(t, "neg", ops.unary(t, "exp", ops.cast(t, t.parameter("A_log", (heads,)), FP32), keeps="output"), keeps="nothing")


def _chunks(size: int) -> Dim:
    """c: chunks of all sequences; the last of each is padded."""
    return Dim("c", 1, (B, Axis("s", 0, (1, size))))


class ChunkScan(Record, frozen=True):
    """`mamba2_chunk_scan` in plain operations: within each chunk of l tokens a masked product like attention, between chunks a recurrence."""

    heads: int
    head_dim: int
    groups: int
    state: int
    chunk: int

    def forward(self, t: Tape, x: Value, dt: Value, decay: Value, b: Value, c: Value) -> Value:
        """x (n, di), dt (n, a), decay (a), b and c (n, gN) -> (n, di) in fp32. All of the function's names hold what they name until it returns."""
        with t.scope(""):
            return self._forward(t, x, dt, decay, b, c)

    def _forward(self, t: Tape, x: Value, dt: Value, decay: Value, b: Value, c: Value) -> Value:
        rows, heads, inner = x.dims[:-1], Dim("a", self.heads), x.dims[-1]
        padded = Dim("n'", self.chunk, _chunks(self.chunk).axes)
        dt = ops.unary(t, "softplus", ops.add(t, dt, ops.cast(t, t.parameter("dt_bias", (heads,)), dt.dtype)))
        dt = ops.unary(t, "clamp", dt)
        x = ops.cast(t, x, FP32)
        every = Dim("aN", self.heads * self.state)
        b, c = (ops.repeat(t, ops.cast(t, v, FP32), (*rows, every)) for v in (b, c))
        skipped = ops.mul(t, t.parameter("D", (heads,)), _pad(t, x, (padded, inner)))
        x = ops.mul(t, x, ops.cast(t, dt, FP32))
        a = ops.mul(t, decay, ops.cast(t, dt, FP32))
        x, a, b, c = (_pad(t, v, (padded, v.dims[-1])) for v in (x, a, b, c))
        t.hold(dt, skipped, x, a, b, c)
        a = ops.unary(t, "cumsum", a, keeps="nothing")
        t.hold(a)
        near = self._within(t, x, a, b, c)
        far = self._between(t, x, a, b, c)
        t.hold(near, far)
        out = ops.add(t, ops.add(t, near, far), skipped)
        cut = Value(out.storage, (*rows, inner), FP32, out.grad)
        t.step("narrow", (out,), (cut,), made=[Made(out, out.storage.size)])
        return cut

    def _within(self, t: Tape, x: Value, a: Value, b: Value, c: Value) -> Value:
        pairs: Dims = (a.dims[0], Dim("a", self.heads), Dim("l", self.chunk))
        length = _segment_decay(t, a, Size.of(pairs, FP32), Size.of((Dim("l²", self.chunk**2),), BOOL), pairs)
        scores = einsum(t, c, b, pairs)
        weighted = ops.mul(t, scores, length)
        t.hold(length, scores, weighted)
        # a product keeps the layout of its factors: weights of pairs come in the order of a batched product
        return ops.matmul(t, weighted, ops.contiguous(t, x), x.dims)

    def _between(self, t: Tape, x: Value, a: Value, b: Value, c: Value) -> Value:
        state: Dims = (_chunks(self.chunk), x.dims[-1], Dim("N", self.state))
        rest = ops.unary(t, "exp", ops.add(t, a, a), keeps="output")
        decayed = ops.mul(t, b, rest)
        states = self._carried(t, a, einsum(t, decayed, x, state))
        through = ops.unary(t, "exp", a, keeps="output")
        out = einsum(t, c, states, x.dims)
        t.hold(rest, decayed, states, through, out)
        return ops.mul(t, out, through)

    def _carried(self, t: Tape, a: Value, states: Value) -> Value:
        """The states before each chunk: c + 1 states of every sequence times the decay between each two of them."""
        sequences, chunks, heads = Dim("b", 1, (B,)), _chunks(self.chunk), Dim("a", self.heads)
        more = Size.of(states.dims, FP32) + Size.of((sequences, *states.dims[1:]), FP32)
        axis = chunks.axes[1]
        # (c+1)² = c² + 2c + 1 numbers a head and sequence
        square = Size.total(Size.of((Dim("", factor, (B, *axes)), heads), FP32) for factor, axes in ((1, (axis, axis)), (2, (axis,)), (1, ())))
        masks = Size.total(Size.of((Dim("", factor, axes),), BOOL) for factor, axes in ((1, (axis, axis)), (2, (axis,)), (1, ())))
        decay = _segment_decay(t, a, square, masks, (sequences, heads))
        before = ops.made(t, "zeros", (sequences, *states.dims[1:]), FP32)
        joined = ops.sized(t, "cat", more, states)
        t.step("cat", (states, before), (joined,), made=[Made(states, None)])
        t.hold(before)
        after = ops.sized(t, "matmul", more, states)
        laid = ops.sized(t, "copy", more, states)
        t.step("copy", (joined,), (laid,), made=[Made(joined, None)])
        t.step("matmul", (decay, laid), (after,), saved=(decay, laid), made=[Made(decay, square), Made(laid, more)])
        t.drop(joined)  # its name is bound to the result
        before = Value(after.storage, states.dims, FP32, after.grad)
        t.step("narrow", (after,), (before,), made=[Made(after, more)])
        return before


def _segment_decay(t: Tape, a: Value, size: Size, mask: Size, dims: Dims) -> Value:
    """exp(segment_sum(a)): decays between each two positions; two masks and the result are kept (modeling_mamba2.py segment_sum)."""

    def one(what: str) -> Value:
        return Value(Storage(size, t.path, what, dims, FP32), dims, FP32, a.grad)

    masks = [Value(Storage(mask, t.path, "mask", dims, BOOL), dims, BOOL, grad=False) for _ in range(2)]
    spread, summed, cut, out = one("masked_fill"), one("cumsum"), one("masked_fill"), one("exp")
    t.step("masked_fill", (a,), (spread, masks[0]), saved=(masks[0],), made=[Made(a, size)])
    t.step("cumsum", (spread,), (summed,), made=[Made(spread, size)])
    t.step("masked_fill", (summed,), (cut, masks[1]), saved=(masks[1],), made=[Made(summed, size)])
    t.drop(spread)
    t.step("exp", (cut,), (out,), saved=(out,), made=[Made(cut, size)])
    return out


def einsum(t: Tape, a: Value, b: Value, dims: Dims) -> Value:
    """`torch.einsum` of two tensors whose batch dimensions do not come first: both are copied into the order of a batched product."""
    return ops.matmul(t, ops.contiguous(t, a), ops.contiguous(t, b), dims)


def _pad(t: Tape, x: Value, dims: Dims) -> Value:
    """`F.pad` to whole chunks: always a new tensor; its backward cuts a view."""
    out = t.new("pad", dims, x.dtype, x.grad)
    t.step("pad", (x,), (out,), made=[Made(x, None)])
    return out
