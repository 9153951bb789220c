"""Mamba-2 in Megatron Core's hybrid models (ssm/mamba_mixer.py), on one rank of a tensor-parallel group: each rank has its heads, and the groups of B
and C that these read."""

from __future__ import annotations

from everybyte.basics.dtypes import FP32
from everybyte.basics.record import Record
from everybyte.engines.megatron.layers.linear import column, own_gradients, row
from everybyte.engines.megatron.sizes import Scan, Split
from everybyte.engines.megatron.style import Style
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import TOKENS, Axis, B, Dim, Size
from everybyte.layers.recording.tape import Made, Tape, Value


class MambaMixer(Record, frozen=True):
    """in_proj; convolution, scan and gate in one function; a norm of each group; out_proj."""

    hidden: int
    sizes: Scan
    split: Split
    style: Style

    @property
    def heads(self) -> Dim:
        """a: heads of this rank."""
        return Dim("a", self.sizes.heads // self.split.tp)

    @property
    def groups(self) -> Dim:
        """g: groups of this rank."""
        return Dim("g", self.sizes.groups // self.split.tp)

    @property
    def inner(self) -> Dim:
        """d_i: channels of this rank."""
        return Dim("d_i", self.heads.size * self.sizes.head_dim)

    @property
    def channels(self) -> Dim:
        """C: channels of the convolution, x, B and C."""
        return Dim("C", self.inner.size + 2 * self.groups.size * self.sizes.state)

    def forward(self, t: Tape, x: Value) -> tuple[Value, Value | None]:
        """x (n/t, h) -> (n/t, h); no layer has a bias."""
        width = Dim("(2d_i+2gN+a)", self.inner.size + self.channels.size + self.heads.size)
        joined = column(t, x, "in_proj", width, self.split, self.style, bias=False)
        # (s, b, ...) -> (b, s, ...) and back again
        scanned = ops.contiguous(t, self._scan(t, ops.contiguous(t, joined)))
        return row(t, self._normed(t, scanned), "out_proj", Dim("h", self.hidden), self.split, self.style, bias=False)

    def _scan(self, t: Tape, joined: Value) -> Value:
        """mamba-ssm's `mamba_split_conv1d_scan_combined` without its norm and projection: keeps its input and the result before the gate, and makes
        all else again in backward (ops/triton/ssd_combined.py MambaSplitConv1dScanCombinedFn)."""
        s, dtype = self.sizes, joined.dtype
        weights = [
            t.parameter("conv1d_weight", (self.channels, Dim("1", 1), Dim("k", s.kernel))),
            t.parameter("conv1d_bias", (self.channels,)),
            *(t.parameter(leaf, (self.heads,)) for leaf in ("dt_bias", "A_log", "D")),
        ]
        out = t.new("scan", (TOKENS, self.inner), dtype, True)
        ungated = t.new("scan before the gate", (TOKENS, self.inner), dtype, False)
        chunks = Dim("c", 1, (B, Axis("s", 0, (1, s.chunk))))
        mixed = Size.of((TOKENS, self.channels), dtype)
        states = Size.of((chunks, self.inner, Dim("N", s.state)), FP32)
        pairs = Size.of((chunks, self.groups, Dim("l²", s.chunk**2)), FP32)
        t.step(
            "mamba_split_conv1d_scan_combined",
            (joined, *weights),
            (out, ungated),
            saved=(joined, ungated),
            scratch=mixed + states * 2 + pairs,
            back_scratch=mixed * 2 + states * 2 + pairs * 2,
            made=[Made(joined, Size.of(joined.dims, dtype)), *own_gradients(*weights)],
        )
        return out

    def _normed(self, t: Tape, x: Value) -> Value:
        """RMSNorm of the channels of each group (mamba-ssm ops/triton/layernorm_gated.py)."""
        with t.scope("norm", x):
            weight = t.parameter("weight", (self.inner,))
            out = t.new("norm", x.dims, x.dtype, True)
            rate = t.new("rstd", (TOKENS, self.groups), FP32, False)
            t.step("norm", (x, weight), (out, rate), saved=(x, rate), made=[Made(x, Size.of(x.dims, x.dtype)), *own_gradients(weight)])
            return out
