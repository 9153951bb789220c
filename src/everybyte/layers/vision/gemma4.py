"""What stands before and behind Gemma 4's image tower, and the embedder that replaces the tower in the unified models (modeling_gemma4.py,
modeling_gemma4_unified.py)."""

from __future__ import annotations

from everybyte.basics.dtypes import BOOL, FP32, INT64
from everybyte.basics.record import Record
from everybyte.layers.blocks.gemma4 import BARE
from everybyte.layers.common.linear import linear
from everybyte.layers.common.norm import layer_norm, rms_norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import SEQUENCES, TOKENS, B, Dim, S
from everybyte.layers.recording.tape import Tape, Value


class Gemma4Patches(Record, frozen=True):
    """A linear layer over raw patches; positions by column and by row added."""

    pixels: int
    hidden: int
    positions: int
    prefix: str

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, C·p²) -> (n, h)."""
        hidden = Dim("h", self.hidden)
        with t.scope(self.prefix):
            raw = ops.scale(t, ops.unary(t, "sub", ops.detach(x), keeps="nothing"))
            out = linear(t, raw, "input_proj", hidden)
            table = t.parameter("position_embedding_table", (Dim("2", 2), Dim("p", self.positions), hidden))
            ids = t.new("positions", (TOKENS, Dim("2", 2)), INT64, grad=False)
            padded = t.new("padding", (TOKENS,), BOOL, grad=False)
            t.step("positions", (), (ids, padded))
            both = []
            for what in ("columns", "rows"):
                row = t.new(what, (TOKENS, hidden), table.dtype, table.grad)
                t.step("embedding", (table, ids), (row,), saved=(ids,) if table.grad else ())
                both.append(row)
            added = ops.add(t, both[0], both[1])
            placed = t.new("where", added.dims, added.dtype, added.grad)
            t.step("where", (added,), (placed,), saved=(padded,) if added.grad else ())
            return ops.add(t, out, placed)


class Gemma4Pooler(Record, frozen=True):
    """The mean of `area` neighbouring patches as a product with a matrix of shares, in fp32; standardised; a norm and the product into the decoder."""

    hidden: int
    out: int
    area: int
    standardised: bool
    tower: str
    embedder: str

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h_v) -> (n/area, h)."""
        few = S._replace(share=(1, self.area))
        rows = Dim(f"n/{self.area}", 1, (B, few))
        pairs = (SEQUENCES, Dim(f"s²/{self.area}", 1, (S, few)))
        filled = t.new("masked_fill", x.dims, x.dtype, x.grad)
        padded = t.new("padding", (TOKENS,), BOOL, grad=False)
        t.step("masked_fill", (x,), (filled, padded), saved=(padded,))
        chosen = t.new("one_hot", pairs, INT64, grad=False)
        t.step("one_hot", (), (chosen,))
        shares = t.new("shares", pairs, FP32, grad=False)
        t.step("div", (chosen,), (shares,))
        wide = ops.cast(t, filled, FP32)
        pooled = t.new("matmul", (rows, x.dims[-1]), FP32, x.grad)
        t.step("matmul", (shares, wide), (pooled,), saved=(shares,))
        pooled = ops.scale(t, ops.cast(t, ops.cast(t, pooled, x.dtype), FP32))
        if self.standardised:
            with t.scope(self.tower):
                for name in ("std_bias", "std_scale"):
                    t.buffer(name, (x.dims[-1],), t.setup.weights)
            pooled = ops.scale(t, ops.unary(t, "sub", pooled, keeps="nothing"))
        return into_decoder(t, ops.cast(t, pooled, x.dtype), self.embedder, self.out)


def into_decoder(t: Tape, x: Value, leaf: str, out: int) -> Value:
    """A norm without a weight and a product: the last step of all that is no text."""
    with t.scope(leaf):
        return linear(t, rms_norm(t, x, "embedding_pre_projection_norm", style=BARE), "embedding_projection", Dim("h", out))


class UnifiedPatches(Record, frozen=True):
    """Merged raw patches straight into the decoder: norm, product, norm, positions, norm."""

    pixels: int
    hidden: int
    positions: int
    out: int
    prefix: str

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, C·p²) -> (n, h)."""
        hidden, axes = Dim("h_v", self.hidden), Dim("2", 2)
        with t.scope(self.prefix):
            x = layer_norm(t, ops.detach(x), "patch_ln1")
            x = layer_norm(t, linear(t, x, "patch_dense", hidden, bias=True), "patch_ln2")
            table = t.parameter("pos_embedding", (Dim("p", self.positions), axes, hidden))
            ids = t.new("positions", (TOKENS, axes), INT64, grad=False)
            valid = t.new("valid", (TOKENS, axes), table.dtype, grad=False)
            t.step("positions", (), (ids, valid))
            rows = t.new("index", (TOKENS, axes, hidden), table.dtype, table.grad)
            t.step("index", (table, ids), (rows,), saved=(ids,) if table.grad else ())
            kept = ops.mul(t, rows, valid)
            both = t.new("sum", (TOKENS, hidden), kept.dtype, kept.grad)
            t.step("sum", (kept,), (both,))
            x = layer_norm(t, ops.add(t, x, both), "pos_norm")
            return into_decoder(t, x, "multimodal_embedder", self.out)


class UnifiedSound(Record, frozen=True):
    """Raw frames of sound straight into the decoder."""

    frame: int
    out: int
    prefix: str

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, frame) -> (n, h)."""
        return into_decoder(t, ops.detach(x), self.prefix, self.out)
