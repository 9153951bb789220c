"""Mamba: a state-space layer with a decay for every channel and state number, run token after token (modeling_mamba.py)."""

from __future__ import annotations

from typing import Literal

from everybyte.basics.dtypes import FP32
from everybyte.basics.record import Record
from everybyte.layers.common.linear import linear
from everybyte.layers.common.norm import rms_norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import SEQUENCES, Axis, B, Dim, Dims, Size
from everybyte.layers.recording.tape import Made, Storage, Tape, Value
from everybyte.layers.recurrent.causal_conv import causal_conv


class Mamba1(Record, frozen=True):
    """out(scan(conv(x), dt, B, C)·silu(z)). Sizes: di inner channels, N state numbers a channel, r the rank of dt."""

    hidden: int
    inner: int
    state: int
    kernel: int
    rank: int
    bias: bool = False
    conv_bias: bool = True
    norms: Literal["", "weighted", "plain"] = ""
    """RMSNorms over dt, B and C: with weights (Jamba), without (Falcon Mamba)."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        rows, inner, state = x.dims[:-1], Dim("d_i", self.inner), Dim("N", self.state)
        both = linear(t, x, "in_proj", Dim("2d_i", 2 * self.inner), bias=self.bias)
        wide = ops.cast(t, t.parameter("A_log", (inner, state)), FP32)
        decay = ops.unary(t, "neg", ops.unary(t, "exp", wide, keeps="output"), keeps="nothing")
        t.cache("state", "recurrent", (inner, state), FP32)
        if t.setup.kernels.scan == "fused" and not self.norms:
            return self._inner_function(t, both, decay)
        u, gate = ops.split(t, both, [(*rows, inner)] * 2)
        u = causal_conv(t, u, "conv1d", self.kernel, bias=self.conv_bias)
        # x_proj and the scan want the channels in different places: x_proj reads a copy, or one sequence the other way round
        parts = linear(t, u if t.setup.single else ops.contiguous(t, u), "x_proj", Dim("(r+2N)", self.rank + 2 * self.state))
        dt, b, c = ops.split(t, parts, [(*rows, d) for d in (Dim("r", self.rank), state, state)])
        dt, b, c = (self._norm(t, v, leaf) for v, leaf in ((dt, "dt_layernorm"), (b, "b_layernorm"), (c, "c_layernorm")))
        with t.scope("dt_proj"):
            dt = ops.linear(t, dt, t.parameter("weight", (inner, Dim("r", self.rank))), None, inner)
            shift = t.parameter("bias", (inner,))
        scan = self._fused_scan if t.setup.kernels.scan == "fused" else self._scan
        out = scan(t, u, ops.cast(t, shift, FP32), dt, decay, b, c, gate)
        return linear(t, ops.cast(t, out, x.dtype), "out_proj", Dim("h", self.hidden), bias=self.bias)

    def _norm(self, t: Tape, x: Value, leaf: str) -> Value:
        if not self.norms:
            return x
        if self.norms == "plain":  # ones that only a kernel reads
            t.buffer(f"{leaf}.weight", (x.dims[-1],), t.setup.weights)
        return rms_norm(t, x, leaf, style="llama" if self.norms == "weighted" else "plain")

    def _scan(self, t: Tape, u: Value, shift: Value, dt: Value, decay: Value, b: Value, c: Value, gate: Value) -> Value:
        """`mamba_selective_scan` in plain operations: every token's decay and input are written out for all states, then a loop over tokens.
        All of the function's names hold what they name until it returns."""
        with t.scope(""):
            return self._run(t, u, shift, dt, decay, b, c, gate)

    def _run(self, t: Tape, u: Value, shift: Value, dt: Value, decay: Value, b: Value, c: Value, gate: Value) -> Value:
        rows, inner, state = u.dims[:-1], u.dims[-1], Dim("N", self.state)
        dt = ops.unary(t, "softplus", ops.add(t, dt, ops.cast(t, shift, dt.dtype)))
        every = (*rows, inner, state)
        decays = ops.unary(t, "exp", _outer(t, decay, dt, every), keeps="output")
        factors = _outer(t, dt, ops.cast(t, b, FP32), every)
        enters = ops.mul(t, factors, ops.cast(t, u, FP32))
        t.hold(dt, decays, factors, enters)
        out = self._loop(t, decays, enters, c, u)
        out = ops.add(t, out, ops.mul(t, u, ops.cast(t, t.parameter("D", (inner,)), FP32)))
        return ops.mul(t, out, ops.unary(t, "silu", gate))

    def _loop(self, t: Tape, decays: Value, enters: Value, c: Value, u: Value) -> Value:
        """state = decay·state + input, y = state·C for each token: the states but the last are kept in fp32, all of them in the type of C."""
        rows, inner, state = u.dims[:-1], u.dims[-1], Dim("N", self.state)
        every, one = Size.of((*rows, inner, state), FP32), Size.of((SEQUENCES, inner, state), FP32)
        dims = (*rows, inner, state)
        grad = decays.grad or enters.grad
        zeros = ops.made(t, "zeros", (SEQUENCES, inner, state), u.dtype)
        states = Value(Storage(every - one, t.path, "states", dims, FP32), dims, FP32, grad=False)
        narrow = t.new("states", dims, u.dtype, False)
        pieces = t.new("results", (*rows, inner), u.dtype, grad)
        made = [Made(v, Size.of(v.dims, v.dtype)) for v in (decays, enters, c) if v.grad]
        t.step(
            "scan",
            (decays, enters, c, zeros),
            (pieces, states, narrow),
            saved=(decays, states, narrow, zeros, c),
            made=made,
            scratch=one * 2,
            back_scratch=every,
        )
        t.hold(pieces)  # a list of results, token by token
        return ops.cat(t, (pieces,), pieces.dims)

    def _fused_scan(self, t: Tape, u: Value, shift: Value, dt: Value, decay: Value, b: Value, c: Value, gate: Value) -> Value:
        """mamba-ssm's `selective_scan_fn`: keeps its inputs, its result before the gate, and two numbers a state for every 2048 tokens
        (ops/selective_scan_interface.py SelectiveScanFn, csrc/selective_scan/selective_scan.cpp)."""
        wide = ops.cast(t, t.parameter("D", (u.dims[-1],)), FP32)
        b, c = (ops.contiguous(t, v) for v in (b, c))
        inputs = (u, dt, decay, b, c, wide, gate, shift)
        out = t.new("scan", u.dims, u.dtype, any(v.grad for v in inputs))
        before, marks = t.new("scan before the gate", u.dims, u.dtype, False), t.new("states", self._marks(u.dims[-1]), FP32, False)
        t.step("selective_scan", inputs, (out, before, marks), saved=(*inputs, before, marks))
        return out

    def _inner_function(self, t: Tape, both: Value, decay: Value) -> Value:
        """mamba-ssm's `mamba_inner_fn`: the whole layer behind in_proj is one function; convolution and dt are run again in backward
        (ops/selective_scan_interface.py MambaInnerFn, checkpoint_lvl 1)."""
        rows, inner, hidden = both.dims[:-1], Dim("d_i", self.inner), Dim("h", self.hidden)
        weights = [decay, ops.cast(t, t.parameter("D", (inner,)), FP32)]
        for leaf, dims, biased in (
            ("conv1d", (inner, Dim("1", 1), Dim("k", self.kernel)), self.conv_bias),
            ("x_proj", (Dim("(r+2N)", self.rank + 2 * self.state), inner), False),
            ("dt_proj", (inner, Dim("r", self.rank)), True),
            ("out_proj", (hidden, inner), self.bias),
        ):
            with t.scope(leaf):
                weights.append(ops.autocast(t, t.parameter("weight", dims)))
                weights += [t.parameter("bias", (dims[0],))] if biased else []
                if leaf == "conv1d":
                    t.cache("state", "conv", (inner, Dim("k", self.kernel)))
        both = ops.autocast(t, both)
        out = t.new("mamba", (*rows, hidden), both.dtype, both.grad or any(w.grad for w in weights))
        small = t.new("dt, B and C", (*rows, Dim("(r+2N)", self.rank + 2 * self.state)), both.dtype, False)
        sides = [t.new(name, (*rows, Dim("N", self.state)), both.dtype, False) for name in ("B", "C")]
        scanned, marks = t.new("scan result", (*rows, inner), both.dtype, False), t.new("states", self._marks(inner), FP32, False)
        again = Size.of((*rows, inner), both.dtype) * 2
        t.step(
            "mamba_inner_fn",
            (both, *weights),
            (out, small, *sides, scanned, marks),
            saved=(both, decay, small, *sides, scanned, marks),
            scratch=again + Size.of((*rows, inner), both.dtype),
            back_scratch=again * 2,
        )
        return out

    def _marks(self, inner: Dim) -> Dims:
        """Two numbers a channel and state for every 2048 tokens."""
        return (Dim("c", 1, (B, Axis("s", 0, (1, 2048)))), inner, Dim("2N", 2 * self.state))


def _outer(t: Tape, a: Value, b: Value, dims: Dims) -> Value:
    """A product in which both factors are broadcast; each gradient is made whole before it is summed."""
    out = t.new("mul", dims, ops.promote(a, b), a.grad or b.grad)
    t.step("mul", (a, b), (out,), saved=([b] if a.grad else []) + ([a] if b.grad else []), back_scratch=Size.of(dims, out.dtype))
    return out
