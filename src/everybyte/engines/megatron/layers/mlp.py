"""Feed-forward layers (transformer/mlp.py), on one rank of a tensor-parallel group."""

from __future__ import annotations

from everybyte.basics.record import Record
from everybyte.engines.megatron.layers.linear import column, kept, row
from everybyte.engines.megatron.sizes import Dense, Split
from everybyte.engines.megatron.style import Style
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Dim, Size
from everybyte.layers.recording.tape import Made, Tape, Value


class FeedForward(Record, frozen=True):
    """linear_fc1, the activation, linear_fc2."""

    hidden: int
    sizes: Dense
    split: Split
    style: Style

    def forward(self, t: Tape, x: Value) -> tuple[Value, Value | None]:
        """x (n/t, h) -> (n/t, h) and the bias of the second product."""
        s = self.sizes
        width = s.ffn // self.split.tp
        up = column(t, x, "linear_fc1", Dim("2f", 2 * width) if s.gated else Dim("f", width), self.split, self.style, bias=s.bias)
        inner = activated(t, up, Dim("f", width), self.style, gated=s.gated)
        return row(t, inner, "linear_fc2", Dim("h", self.hidden), self.split, self.style, bias=s.bias)


def activated(t: Tape, x: Value, width: Dim, style: Style, *, gated: bool, module: str = "") -> Value:
    """The activation as one kernel that keeps its input (fusions/fused_bias_gelu.py, fused_bias_swiglu.py); unfused gated ones keep the parts as well."""
    out = t.new("activation", (*x.dims[:-1], width), x.dtype, True)
    if style.glu_fused or not gated:
        t.step("activation", (x,), (out,), saved=kept(t, style, module, x), made=[Made(x, Size.of(x.dims, x.dtype))])
        return out
    gate, up = ops.split(t, x, [(*x.dims[:-1], width)] * 2)
    return ops.mul(t, ops.unary(t, "silu", gate), up)
