"""What stands before and behind Llama 4's image tower (transformers modeling_llama4.py)."""

from __future__ import annotations

from everybyte.basics.record import Record
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import activate
from everybyte.layers.common.norm import layer_norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import TOKENS, B, Dim
from everybyte.layers.recording.tape import Tape, Value


class UnfoldedPatches(Record, frozen=True):
    """Patches laid out side by side (unfold), a linear layer over each, a class token behind them, positions, a norm."""

    pixels: int
    """Numbers of one patch."""
    hidden: int
    patches: int
    prefix: str

    def forward(self, t: Tape, x: Value) -> Value:
        """Pixels of images -> (n, h)."""
        hidden, rows = Dim("h", self.hidden), Dim("p·b", self.patches, (B,))
        with t.scope(self.prefix):
            grid = t.new("unfold", (rows, Dim("C·p²", self.pixels)), x.dtype, grad=False)
            t.step("unfold", (ops.detach(x),), (grid,))
            # unfold lays the numbers of a patch out last; the product needs them together: a copy, unless there is one image
            grid = grid if t.setup.single else ops.contiguous(t, grid)
            out = linear(t, grid, "patch_embedding.linear", hidden)
            token = t.parameter("class_embedding", (hidden,))
            out = ops.cat(t, (out, token), (TOKENS, hidden))
            out = ops.add(t, out, t.parameter("positional_embedding_vlm", (Dim("p", self.patches + 1), hidden)))
            return layer_norm(t, out, "layernorm_pre")


class ShuffledProjector(Record, frozen=True):
    """The class token is dropped, pixels are shuffled into channels, two products with GELU behind each, one product into the decoder."""

    hidden: int
    inner: int
    """Width that the shuffle makes."""
    middle: int
    projected: int
    out: int
    patches: int
    area: int
    """Patches that become one."""
    prefix: str
    projector: str

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n/area, h of the decoder)."""
        with t.scope(self.prefix):
            x = layer_norm(t, x, "layernorm_post")
            x = ops.narrow(t, x, (Dim("p·b", self.patches, (B,)), Dim("h", self.hidden)))
            rows = (Dim(f"p·b/{self.area}", self.patches // self.area, (B,)), Dim("c", self.inner))
            x = ops.view(ops.contiguous(t, ops.contiguous(t, x)), rows)
            x = activate(t, linear(t, x, "vision_adapter.mlp.fc1", Dim("c", self.middle)), "gelu")
            x = activate(t, linear(t, x, "vision_adapter.mlp.fc2", Dim("c", self.projected)), "gelu")
        return linear(t, x, f"{self.projector}.linear_1", Dim("h", self.out))
