"""What makes the first hidden states of an image or a sound, and what carries them into a language model."""

from __future__ import annotations

from math import prod

from everybyte.basics.dtypes import FP32, INT64
from everybyte.basics.record import Record
from everybyte.layers.attention.kernels import SCORES, Heads, attend
from everybyte.layers.common.conv import conv
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import activate
from everybyte.layers.common.norm import Norm
from everybyte.layers.common.rope import rotary
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import SEQUENCES, TOKENS, B, Dim, Dims, S, T
from everybyte.layers.recording.tape import Tape, Value


def image(channels: int, height: int, width: int) -> Dims:
    """(b, C·H·W): an image of a fixed size for each item."""
    return (SEQUENCES, Dim("C·H·W", channels * height * width))


def cut(channels: int, patch: tuple[int, ...]) -> Dims:
    """(n, C·patch): patches of images of any size."""
    return (TOKENS, Dim("C·p²", channels * prod(patch)))


class PatchEmbedding(Record, frozen=True):
    """A strided convolution over patches, a class token in front, learned positions added."""

    channels: int
    patch: tuple[int, ...]
    hidden: int
    patches: int
    """Patches of the configured image: rows of the position table without class tokens."""
    leaf: str = "patch_embedding"
    bias: bool = True
    class_token: str = ""
    """Name of the class token; empty for none."""
    positions: str = ""
    """Name of the position table; empty for none."""
    table: bool = False
    """Positions are looked up in an Embedding (its parameter is `positions`.weight); else added as they are."""
    norm: Norm | None = None
    norm_leaf: str = ""
    """Name of the norm behind it."""
    masked: bool = False
    """A mask that parts the images of one sequence is made for all blocks, but for flash attention (Pixtral)."""
    dropout: float = 0.0

    def forward(self, t: Tape, x: Value) -> Value:
        """Pixels of whole images, or patches already cut out -> (n, h)."""
        hidden = Dim("h", self.hidden)
        grid = Dim("p·b", self.patches, (B,)) if self.class_token else TOKENS
        out = conv(t, ops.detach(x), self.leaf, self.hidden, self.patch, grid, bias=self.bias, channels=self.channels)
        out = ops.view(out, (grid, hidden))
        rows = self.patches
        if self.class_token:
            token = t.parameter(self.class_token, (hidden,))
            rows += 1
            out = ops.cat(t, (token, out), (TOKENS, hidden))
        if self.positions and self.table:
            with t.scope(self.positions):
                out = ops.add(t, out, ops.embedding(t, "weight", Dim("p", rows), hidden, Dim("s", 1, (S,))))
        elif self.positions:
            out = ops.add(t, out, t.parameter(self.positions, (Dim("p", rows), hidden)))
        if self.norm is not None:
            out = self.norm.forward(t, out, self.norm_leaf)
        if self.masked and t.setup.kernels.attention != "flash":
            mask = t.new("attention mask", (SCORES,), out.dtype, grad=False)
            t.step("attention mask", (), (mask,))
            t.pin(mask)
        return ops.dropout(t, out, self.dropout)


class GridPositions(Record, frozen=True):
    """Adds positions looked up at several points of a learned grid and mixed by weights: resampled to the image's own grid."""

    leaf: str
    rows: int
    taps: int
    bag: bool = False
    """One kernel sums the rows (`embedding_bag`); else the rows are written out, multiplied and summed in fp32."""

    def add_to(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        points = (x.dims[0], Dim("taps", self.taps))
        place, _, name = self.leaf.rpartition(".")
        with t.scope(place):
            table = t.parameter(name, (Dim("p", self.rows), x.dims[-1]))
        ids = t.new("positions", points, INT64, grad=False)
        mix = t.new("weights", points, x.dtype if self.bag else FP32, grad=False)
        t.step("positions", (), (ids, mix))
        t.until_end(ids)
        t.until_end(mix)
        if self.bag:
            out = t.new("embedding_bag", x.dims, table.dtype, table.grad)
            t.step("embedding_bag", (table, ids, mix), (out,), saved=(ids, mix) if table.grad else ())
        else:
            rows = t.new("embedding", (*points, x.dims[-1]), table.dtype, table.grad)
            t.step("embedding", (table, ids), (rows,), saved=(ids,) if table.grad else ())
            product = t.new("mul", rows.dims, FP32, table.grad)
            t.step("mul", (rows, mix), (product,), saved=(mix,) if table.grad else ())
            out = t.new("sum", x.dims, FP32, table.grad)
            t.step("sum", (product,), (out,))
        return ops.add(t, x, ops.cast(t, out, x.dtype))


class CutPatches(Record, frozen=True):
    """Patches that the processor has cut out (frames x height x width of one patch in a row) through a convolution of that very size."""

    channels: int
    patch: tuple[int, ...]
    hidden: int
    leaf: str
    bias: bool = False
    positions: GridPositions | None = None
    sorted: bool = False
    """Patches are put in the order of the attention's windows (Qwen2.5-VL)."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, C·patch) -> (n, h)."""
        out = conv(t, ops.detach(x), self.leaf, self.hidden, self.patch, TOKENS, bias=self.bias, channels=self.channels)
        out = ops.view(out, (TOKENS, Dim("h", self.hidden)))
        if self.positions is not None:
            out = self.positions.add_to(t, out)
        return reordered(t, out) if self.sorted else out


def reordered(t: Tape, x: Value) -> Value:
    """`x[index]`: a copy; the index is kept."""
    out = t.new("index", x.dims, x.dtype, x.grad)
    index = t.new("order", (Dim("n/4", 1, (B, S._replace(share=(1, 4)))),), INT64, grad=False)
    t.step("index", (x,), (out, index), saved=(index,))
    t.until_end(index)
    return out


class JoinedAttention(Record, frozen=True):
    """Attention over patches with one projection for q, k and v (or three) and positions applied in fp32, as the Qwen and Kimi towers have it."""

    hidden: int
    heads: int
    joined: str = "qkv"
    """Name of the joined projection; empty for q_proj, k_proj and v_proj."""
    out: str = "proj"
    window: int = 0
    """Patches of a window that attend to one another; 0: all patches of an image."""
    width: int = 0
    """A = a·d where it is not the hidden size (Kimi K3)."""
    bias: bool = True

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        width = Dim("A", self.width or self.hidden)
        head_dim = width.size // self.heads
        sizes = Heads(self.heads, self.heads, head_dim, head_dim)
        if self.joined:
            both = linear(t, x, self.joined, Dim("3A", 3 * width.size), bias=self.bias)
            q, k, v = ops.split(t, both, [(x.dims[0], width)] * 3)
        else:
            q, k, v = (linear(t, x, name, width, bias=self.bias) for name in ("q_proj", "k_proj", "v_proj"))
        q, k = rotary(t, q, wide=True), rotary(t, k, wide=True)
        seen = T._replace(cap=self.window)
        out = attend(t, q, k, v, sizes, scores=Dim("b·s·w", 1, (B, S, seen)) if self.window else SCORES, causal=False)
        if t.setup.kernels.attention != "flash":
            # each image (or window) is a call of its own; their results are joined
            out = ops.cat(t, (out,), out.dims)
        return linear(t, out, self.out, Dim("h", self.hidden), bias=self.bias)


class PatchMerger(Record, frozen=True):
    """Neighbouring patches side by side, then two linear layers: (n, h) -> (n/m², out)."""

    hidden: int
    out: int
    merge: int
    prefix: str
    norm: Norm
    norm_leaf: str
    """Name of the norm before the products; empty for none."""
    names: tuple[str, str]
    norm_after: bool = False
    """The norm sees the joined patches (DeepStack)."""
    final_norm: str = ""
    """Name of a norm of the tower before all this."""
    sorted_back: bool = False
    """The result returns from the windows' order to that of the image."""
    wide_copy: bool = False
    """Patches are joined by a sum in fp32 (frames of a video are averaged)."""
    post_norm: str = ""
    """Name of a norm behind the products (Kimi K3)."""
    bias: bool = True

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n/m², out)."""
        joined = (Dim(f"n/{self.merge**2}", 1, (B, S._replace(share=(1, self.merge**2)))), Dim(f"{self.merge**2}h", self.merge**2 * self.hidden))
        if self.final_norm:
            x = self.norm.forward(t, x, self.final_norm)
        if self.wide_copy:
            x = _averaged(t, x)
        with t.scope(self.prefix):
            if self.norm_leaf:
                x = self.norm.forward(t, ops.view(x, joined) if self.norm_after else x, self.norm_leaf)
            x = linear(t, ops.view(x, joined), self.names[0], joined[1], bias=self.bias)
            x = linear(t, activate(t, x, "gelu"), self.names[1], Dim("h", self.out), bias=self.bias)
            x = self.norm.forward(t, x, self.post_norm) if self.post_norm else x
        return reordered(t, x) if self.sorted_back else x


def _averaged(t: Tape, x: Value) -> Value:
    """`zeros.index_add_(index, x.float()·weight).to(dtype)` (modeling_kimi_k25.py temporal_merge)."""
    wide = ops.scale(t, ops.cast(t, x, FP32))
    out = t.new("index_add", x.dims, FP32, x.grad)
    t.step("index_add", (wide,), (out,))
    return ops.cast(t, out, x.dtype)


class Tap(Record, frozen=True):
    """A branch off a tower: its result goes to the language model, the tower goes on with its input (DeepStack)."""

    branch: PatchMerger

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> the same x, which the block behind it keeps as well."""
        x.storage.kept_before = x.grad
        t.until_end(self.branch.forward(t, x))
        return x


class Projector(Record, frozen=True):
    """linear_2(act(linear_1(x))): from the width of the tower to that of the language model; a norm and a merge of patches may stand before it."""

    source: int
    out: int
    activation: str
    bias: bool
    prefix: str = "multi_modal_projector"
    merge: int = 1
    """Patches of merge x merge are joined and brought back to the tower's width first (Mistral 3)."""
    norm: Norm | None = None

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h_v) -> (n/m², h)."""
        with t.scope(self.prefix):
            if self.norm is not None:
                x = self.norm.forward(t, x, "norm")
            if self.merge > 1:
                area = self.merge**2
                rows = Dim(f"n/{area}", 1, (B, S._replace(share=(1, area))))
                grid = t.new("unfold", (rows, Dim(f"{area}h", area * self.source)), x.dtype, x.grad)
                t.step("unfold", (x,), (grid,))
                x = linear(t, ops.cat(t, (grid,), grid.dims), "patch_merger.merging_layer", Dim("h", self.source))
            x = activate(t, linear(t, x, "linear_1", Dim("h", self.out), bias=self.bias), self.activation)
            return linear(t, x, "linear_2", Dim("h", self.out), bias=self.bias)
