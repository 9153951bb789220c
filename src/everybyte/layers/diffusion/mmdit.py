"""Blocks of diffusion transformers in which image and text attend together: Flux and Stable Diffusion 3 (diffusers transformer_flux.py, attention.py)."""

from __future__ import annotations

from everybyte.basics.record import Record
from everybyte.layers.attention.kernels import Heads, sdpa
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import activate
from everybyte.layers.common.norm import rms_norm
from everybyte.layers.common.rope import rotary
from everybyte.layers.diffusion.adaln import clipped, condition, gated, modulated, modulation, plain_norm, streams, together
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import JOINT_TOKENS, MEMORY_TOKENS, TOKENS, Dim
from everybyte.layers.recording.tape import Tape, Value

IMAGE = ("to_q", "to_k", "to_v")
TEXT = ("add_q_proj", "add_k_proj", "add_v_proj")


class JointAttention(Record, frozen=True):
    """softmax over image and text tokens together, each with its own projections."""

    heads: int
    head_dim: int
    qk_norm: str
    """How the norm of every query and key head is written (`rms_norm`'s styles); empty for none."""
    rope: bool
    by_head: bool
    """q, k and v are joined by head, so that the result must be copied back into token order (Stable Diffusion 3; Flux joins by token)."""
    text_out: bool = True
    """The text stream goes on (not in the last block of Stable Diffusion 3)."""

    @property
    def width(self) -> int:
        """A = a·d."""
        return self.heads * self.head_dim

    def forward(self, t: Tape, image: Value, text: Value) -> tuple[Value, Value | None]:
        """(n, h) and (m, h) -> the same."""
        width = Dim("A", self.width)
        ours = self._project(t, image, IMAGE, ("norm_q", "norm_k"))
        theirs = self._project(t, text, TEXT, ("norm_added_q", "norm_added_k"))
        q, k, v = (ops.cat(t, pair, (JOINT_TOKENS, width)) for pair in zip(theirs, ours, strict=True))
        if self.rope:
            q, k = rotary(t, q, wide=True), rotary(t, k, wide=True)
        out = sdpa(t, q, k, v, Heads(self.heads, self.heads, self.head_dim, self.head_dim))
        if self.by_head:
            out = ops.contiguous(t, out)
        out = ops.cast(t, out, q.dtype)
        parts = [(TOKENS, width), (MEMORY_TOKENS, width)]
        left, right = (ops.narrow(t, out, dims) for dims in parts) if self.by_head else ops.split(t, out, parts)
        # a part of each sequence is not in one piece unless there is one sequence: copied before the product
        if not t.setup.single:
            left, right = ops.contiguous(t, left), ops.contiguous(t, right) if self.text_out else right
        done = linear(t, left, "to_out.0", Dim("h", self.width), bias=True)
        return done, linear(t, right, "to_add_out", Dim("h", self.width), bias=True) if self.text_out else None

    def _project(self, t: Tape, x: Value, names: tuple[str, str, str], norms: tuple[str, str]) -> list[Value]:
        q, k, v = (linear(t, x, name, Dim("A", self.width), bias=True) for name in names)
        if self.qk_norm:
            q, k = (head_norm(t, part, leaf, self.heads, self.qk_norm) for part, leaf in ((q, norms[0]), (k, norms[1])))
        return [q, k, v]


def head_norm(t: Tape, x: Value, leaf: str, heads: int, style: str) -> Value:
    """RMSNorm over every head."""
    by_head = ops.view(x, (x.dims[0], Dim("a", heads), Dim("d", x.dims[1].size // heads)))
    return ops.view(rms_norm(t, by_head, leaf, style=style), x.dims)


def feed_forward(t: Tape, x: Value, leaf: str, width: int, activation: str = "gelu_tanh") -> Value:
    """diffusers FeedForward without a gate: four times as wide inside."""
    with t.scope(leaf):
        inner = activate(t, linear(t, x, "net.0.proj", Dim("f", 4 * width), bias=True), activation)
        return linear(t, inner, "net.2", Dim("h", width), bias=True)


def modulated_norm(t: Tape, x: Value, temb: Value, leaf: str, count: int, scale: int = 1, shift: int = 0) -> tuple[list[Value], Value]:
    """The `count` parts that the condition asks for, and the norm of x scaled and shifted by two of them."""
    parts = modulation(t, temb, leaf, x.dims[-1].size, count)
    with t.scope(leaf):
        return parts, modulated(t, plain_norm(t, x), parts[scale], parts[shift])


class DoubleBlock(Record, frozen=True):
    """Image and text streams with their own modulation and feed-forward, joined in attention."""

    attention: JointAttention

    def forward(self, t: Tape, x: Value) -> Value:
        """x (j, h) -> (j, h)."""
        width = self.attention.width
        temb = condition(t, width, x)
        image, text = streams(t, x, width)
        asked, ours = modulated_norm(t, image, temb, "norm1", 6)
        wanted, theirs = modulated_norm(t, text, temb, "norm1_context", 6)
        with t.scope("attn", ours, theirs):
            left, right = self.attention.forward(t, ours, theirs)
        assert right is not None  # a double block carries the text on
        image, ours = self._inner(t, image, left, asked, "norm2", "ff", width)
        text, theirs = self._inner(t, text, right, wanted, "norm2_context", "ff_context", width)
        return clipped(t, together(t, (image, ours), (text, theirs), width))

    def _inner(self, t: Tape, x: Value, attended: Value, asked: list[Value], norm: str, leaf: str, width: int) -> tuple[Value, Value]:
        """x + gate·attention, and gate·feed_forward of it, still to be added."""
        x = gated(t, x, asked[2], attended)
        with t.scope(norm):
            normed = modulated(t, plain_norm(t, x), asked[4], asked[3])
        return x, ops.mul(t, asked[5], feed_forward(t, normed, leaf, width))


class LastDoubleBlock(Record, frozen=True):
    """The last block of Stable Diffusion 3: the text is read, but does not go on."""

    attention: JointAttention

    def forward(self, t: Tape, x: Value) -> Value:
        """x (j, h) -> (n, h)."""
        width = self.attention.width
        temb = condition(t, width, x)
        image, text = streams(t, x, width)
        asked, ours = modulated_norm(t, image, temb, "norm1", 6)
        _, theirs = modulated_norm(t, text, temb, "norm1_context", 2, scale=0, shift=1)
        with t.scope("attn", ours, theirs):
            left, _ = self.attention.forward(t, ours, theirs)
        image = gated(t, image, asked[2], left)
        with t.scope("norm2"):
            normed = modulated(t, plain_norm(t, image), asked[4], asked[3])
        return gated(t, image, asked[5], feed_forward(t, normed, "ff", width))


class SingleBlock(Record, frozen=True):
    """Image and text as one sequence; attention and feed-forward side by side (Flux)."""

    heads: int
    head_dim: int

    def forward(self, t: Tape, x: Value) -> Value:
        """x (j, h) -> (j, h)."""
        width = self.heads * self.head_dim
        hidden, inner = Dim("h", width), Dim("f", 4 * width)
        whole = ops.cat(t, streams(t, x, width), (JOINT_TOKENS, hidden))
        shift, scale, gate = modulation(t, condition(t, width, x), "norm", width, 3)
        with t.scope("norm"):
            normed = modulated(t, plain_norm(t, whole), scale, shift)
        wide = activate(t, linear(t, normed, "proj_mlp", inner, bias=True), "gelu_tanh")
        with t.scope("attn", normed, wide):
            q, k, v = (linear(t, normed, name, Dim("A", width), bias=True) for name in IMAGE)
            q, k = head_norm(t, q, "norm_q", self.heads, "torch"), head_norm(t, k, "norm_k", self.heads, "torch")
            q, k = rotary(t, q, wide=True), rotary(t, k, wide=True)
            attended = sdpa(t, q, k, v, Heads(self.heads, self.heads, self.head_dim, self.head_dim))
        both = ops.cat(t, (attended, wide), (JOINT_TOKENS, Dim("h+f", 5 * width)))
        return clipped(t, gated(t, whole, gate, linear(t, both, "proj_out", hidden, bias=True)))
