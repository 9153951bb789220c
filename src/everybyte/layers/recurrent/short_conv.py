"""A short convolution between two products with gates, in the place of attention (modeling_lfm2.py Lfm2ShortConv)."""

from __future__ import annotations

from everybyte.basics.record import Record
from everybyte.layers.common.linear import linear
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Dim
from everybyte.layers.recording.tape import Tape, Value
from everybyte.layers.recurrent.causal_conv import causal_conv


class ShortConv(Record, frozen=True):
    """out(C·conv(B·u)), where B, C and u come from one projection."""

    hidden: int
    kernel: int
    bias: bool = False

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        width = Dim("h", self.hidden)
        joined = linear(t, x, "in_proj", Dim("3h", 3 * self.hidden), bias=self.bias)
        before, behind, inner = ops.split(t, joined, [(*x.dims[:-1], width)] * 3)
        mixed = ops.mul(t, before, inner)
        t.hold(joined)
        mixed = causal_conv(t, mixed, "conv", self.kernel, bias=self.bias, silu=False)
        out = ops.contiguous(t, ops.mul(t, behind, mixed))
        return linear(t, out, "out_proj", width, bias=self.bias)
