"""What carries Gemma 3's image encoder into its decoder (modeling_gemma3.py Gemma3MultiModalProjector)."""

from __future__ import annotations

from everybyte.basics.record import Record
from everybyte.layers.common.norm import rms_norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import B, Dim, S
from everybyte.layers.recording.tape import Tape, Value


class PooledProjector(Record, frozen=True):
    """The mean of `area` neighbouring patches, a norm, one product: (n, h_v) -> (n/area, h)."""

    source: int
    out: int
    area: int
    prefix: str

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h_v) -> (n/area, h)."""
        rows = Dim(f"n/{self.area}", 1, (B, S._replace(share=(1, self.area))))
        with t.scope(self.prefix):
            grid = ops.contiguous(t, x)
            pooled = t.new("avg_pool", (rows, x.dims[-1]), x.dtype, x.grad)
            t.step("avg_pool", (grid,), (pooled,), saved=(grid,))
            normed = rms_norm(t, pooled, "mm_soft_emb_norm", style="gemma")
            weight = t.parameter("mm_input_projection_weight", (Dim("h_v", self.source), Dim("h", self.out)))
            return ops.linear(t, normed, weight, None, Dim("h", self.out))
