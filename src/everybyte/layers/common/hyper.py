"""Hyper-connections: several residual streams that every branch reads as a mixture and writes back to all (modeling_deepseek_v4.py)."""

from __future__ import annotations

from typing import Any

from everybyte.basics.dtypes import FP32
from everybyte.basics.record import Record
from everybyte.layers.common.norm import rms_norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.indexing import total
from everybyte.layers.recording.size import TOKENS, Dim, Size
from everybyte.layers.recording.tape import Made, Tape, Value


class HyperBlock(Record, frozen=True):
    """A decoder block over `streams` residual streams: x (n, c·h), c streams of h."""

    mixer: Any
    mlp: Any
    hidden: int
    streams: int
    iterations: int
    """Rounds in which the mixing matrix is made doubly stochastic."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, c·h) -> (n, c·h)."""
        parts = ((self.mixer, "self_attn", "attn_hc", "input_layernorm"), (self.mlp, "mlp", "ffn_hc", "post_attention_layernorm"))
        named: tuple[Value, ...] = ()
        for part, name, mixing, norm in parts:
            with t.scope(mixing, x):
                write, mix, collapsed = self._mixtures(t, x)
            t.drop(*named)
            named = write, mix, collapsed
            branch = rms_norm(t, collapsed, norm, style="wide")
            with t.scope(name, branch, x):
                branch = part.forward(t, branch)
            x = self._write_back(t, x, branch, write, mix)
        t.drop(*named)
        return x

    def _mixtures(self, t: Tape, x: Value) -> tuple[Value, Value, Value]:
        """Weights of the write-back (n, c), the streams' mixing matrix (n, c²), and the mixture that the branch reads (n, h)."""
        rows, c = x.dims[:-1], self.streams
        one, square = Dim("c", c), Dim("c²", c * c)
        width = Dim("(2c+c²)", (2 + c) * c)
        normal = unweighted_norm(t, ops.cast(t, x, FP32))
        mixed = ops.linear(t, normal, t.parameter("fn", (width, x.dims[-1]), dtype=FP32), None, width)
        base, scales = t.parameter("base", (width,), dtype=FP32), t.parameter("scale", (Dim("3", 3),), dtype=FP32)
        read, write, mix = ops.split(t, mixed, [(*rows, d) for d in (one, one, square)])
        read, write, mix = (ops.add(t, _times_scale(t, part, scales), _part_of(base, part)) for part in (read, write, mix))
        read = ops.unary(t, "add", ops.unary(t, "sigmoid", read, keeps="output"), keeps="nothing")
        write = ops.scale(t, ops.unary(t, "sigmoid", write, keeps="output"))
        mix = ops.unary(t, "add", ops.softmax(t, mix, FP32), keeps="nothing")
        for _ in range(2 * self.iterations - 1):
            mix = ops.mul(t, mix, ops.unary(t, "add", total(t, mix, (*rows, one)), keeps="nothing"))
        scaled = ops.mul(t, ops.view(x, (*rows, one, Dim("h", self.hidden))), read)
        return write, mix, ops.cast(t, total(t, scaled, (*rows, Dim("h", self.hidden))), x.dtype)

    def _write_back(self, t: Tape, x: Value, branch: Value, write: Value, mix: Value) -> Value:
        """write·branch for each stream, plus the streams mixed among themselves."""
        spread = t.new("mul", x.dims, x.dtype, branch.grad or write.grad)
        write = ops.cast(t, write, x.dtype)
        saved = ([branch] if write.grad else []) + ([write] if branch.grad else [])
        t.step("mul", (write, branch), (spread,), saved=saved, back_scratch=Size.of(x.dims, x.dtype) * (bool(write.grad) + bool(branch.grad)))
        mixed = ops.matmul(t, ops.cast(t, mix, x.dtype), x, x.dims)
        return ops.add(t, spread, mixed)


class HyperStem(Record, frozen=True):
    """The token embedding, copied to every stream."""

    embedding: Any
    hidden: int
    streams: int

    def forward(self, t: Tape, x: Value) -> Value:
        """ids (n) -> (n, c·h)."""
        return ops.repeat(t, self.embedding.forward(t, x), (TOKENS, Dim("c·h", self.streams * self.hidden)))


class HyperTail(Record, frozen=True):
    """The streams' last mixture and the final norm."""

    hidden: int
    streams: int
    leaf: str
    norm: str

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, c·h) -> (n, h)."""
        rows, one = x.dims[:-1], Dim("c", self.streams)
        with t.scope(self.leaf):
            weight = t.parameter("hc_fn", (one, x.dims[-1]), dtype=FP32)
            base, scale = t.parameter("hc_base", (one,), dtype=FP32), t.parameter("hc_scale", (Dim("1", 1),), dtype=FP32)
            read = ops.linear(t, unweighted_norm(t, ops.cast(t, x, FP32)), weight, None, one)
            read = ops.add(t, ops.mul(t, read, scale), base)
            read = ops.unary(t, "add", ops.unary(t, "sigmoid", read, keeps="output"), keeps="nothing")
            scaled = ops.mul(t, ops.view(x, (*rows, one, Dim("h", self.hidden))), read)
            out = ops.cast(t, total(t, scaled, (*rows, Dim("h", self.hidden))), x.dtype)
        return rms_norm(t, out, self.norm, style="wide")


def unweighted_norm(t: Tape, x: Value) -> Value:
    """`x·rsqrt(mean(x²))`, the statistics in fp32, the product in the type of x."""
    wide = ops.cast(t, x, FP32)
    squares = ops.mean(t, ops.power(t, wide), x.dims[:-1])
    rate = ops.unary(t, "rsqrt", ops.unary(t, "add", squares, keeps="nothing"), keeps="output")
    return ops.mul(t, x, ops.cast(t, rate, x.dtype))


def _times_scale(t: Tape, part: Value, scales: Value) -> Value:
    """A product with one number of a parameter: keeps the part."""
    out = t.new("mul", part.dims, FP32, part.grad or scales.grad)
    t.step("mul", (part, scales), (out,), saved=(part,), made=[Made(part, Size.of(part.dims, FP32)), Made(scales, Size.of(scales.dims, FP32))])
    return out


def _part_of(base: Value, part: Value) -> Value:
    """The entries of a parameter that belong to a part."""
    return Value(base.storage, part.dims[-1:], base.dtype, base.grad)
