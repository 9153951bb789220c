"""CogVideoX: one feed-forward layer and one attention for video and text tokens, each stream with its own modulation
(diffusers cogvideox_transformer_3d.py)."""

from __future__ import annotations

from everybyte.basics.record import Record
from everybyte.layers.attention.kernels import Heads, sdpa
from everybyte.layers.common.conv import conv
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import activate
from everybyte.layers.common.norm import layer_norm
from everybyte.layers.common.rope import rotary
from everybyte.layers.diffusion.adaln import condition, gated, modulated, modulation, streams, together
from everybyte.layers.diffusion.dit import small_mlp
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import JOINT_TOKENS, MEMORY_TOKENS, TOKENS, Dim
from everybyte.layers.recording.tape import Made, Tape, Value


class VideoBlock(Record, frozen=True):
    """norm, joined attention, norm, joined feed-forward; gates on both streams."""

    heads: int
    head_dim: int
    time: int
    """Width of the time step's embedding."""
    bias: bool
    rope: bool
    affine: bool

    @property
    def width(self) -> int:
        """h = a·d."""
        return self.heads * self.head_dim

    def forward(self, t: Tape, x: Value) -> Value:
        """x (j, h) -> (j, h)."""
        hidden = Dim("h", self.width)
        temb = condition(t, self.time, x)
        image, text = streams(t, x, self.width)
        ours, theirs, gates = self._normed(t, image, text, temb, "norm1")
        with t.scope("attn1", ours, theirs):
            left, right = self._attention(t, ours, theirs)
        image, text = gated(t, image, gates[0], left), gated(t, text, gates[1], right)
        ours, theirs, gates = self._normed(t, image, text, temb, "norm2")
        both = ops.cat(t, (theirs, ours), (JOINT_TOKENS, hidden))
        with t.scope("ff"):
            inner = activate(t, linear(t, both, "net.0.proj", Dim("f", 4 * self.width), bias=True), "gelu_tanh")
            done = linear(t, inner, "net.2", hidden, bias=True)
        left, right = ops.narrow(t, done, (TOKENS, hidden)), ops.narrow(t, done, (MEMORY_TOKENS, hidden))
        return together(t, (image, ops.mul(t, gates[0], left)), (text, ops.mul(t, gates[1], right)), self.width)

    def _normed(self, t: Tape, image: Value, text: Value, temb: Value, leaf: str) -> tuple[Value, Value, tuple[Value, Value]]:
        """Both streams through one norm, each with its own scale and shift; and their gates."""
        asked = modulation(t, temb, leaf, self.width, 6)
        with t.scope(leaf):
            ours = modulated(t, layer_norm(t, image, "norm", affine=self.affine), asked[1], asked[0])
            theirs = modulated(t, layer_norm(t, text, "norm", affine=self.affine), asked[4], asked[3])
        return ours, theirs, (asked[2], asked[5])

    def _attention(self, t: Tape, image: Value, text: Value) -> tuple[Value, Value]:
        hidden = Dim("h", self.width)
        both = ops.cat(t, (text, image), (JOINT_TOKENS, hidden))
        q, k, v = (linear(t, both, name, Dim("A", self.width), bias=self.bias) for name in ("to_q", "to_k", "to_v"))
        q, k = (self._turned(t, self._head_norm(t, part, leaf)) for part, leaf in ((q, "norm_q"), (k, "norm_k")))
        out = sdpa(t, q, k, v, Heads(self.heads, self.heads, self.head_dim, self.head_dim))
        # the norms leave q and k head by head, and so the result: brought back into token order by a copy
        out = linear(t, ops.contiguous(t, out), "to_out.0", hidden, bias=True)
        right, left = ops.split(t, out, [(MEMORY_TOKENS, hidden), (TOKENS, hidden)])
        return left, right

    def _head_norm(self, t: Tape, x: Value, leaf: str) -> Value:
        by_head = ops.view(x, (x.dims[0], Dim("a", self.heads), Dim("d", self.head_dim)))
        return ops.view(layer_norm(t, by_head, leaf), x.dims)

    def _turned(self, t: Tape, x: Value) -> Value:
        """Positions of the video tokens are turned and written over what was there."""
        if not self.rope:
            return x
        part = rotary(t, ops.narrow(t, x, (TOKENS, x.dims[1])), wide=True)
        out = Value(x.storage, x.dims, x.dtype, x.grad)
        t.step("copy_", (x, part), (out,), made=[Made(x, None), Made(part, None)])
        return out


class VideoStem(Record, frozen=True):
    """Patches of every frame, prompt states, fixed positions; the time step's embedding beside them."""

    channels: int
    patch: int
    hidden: int
    prompt: int
    time: int
    positions: int
    """Rows of the fixed table of positions; 0 with rotary positions."""
    bias: bool

    def forward(self, t: Tape, x: Value) -> Value:
        """(n, C·p²) -> (j, h)."""
        hidden = Dim("h", self.hidden)
        t.until_end(small_mlp(t, "time_embedding", self.hidden, self.time))
        prompt = t.given("prompt states", (MEMORY_TOKENS, Dim("h_t", self.prompt)), x.dtype)
        with t.scope("patch_embed"):
            text = linear(t, prompt, "text_proj", hidden, bias=True)
            image = conv(t, ops.detach(x), "proj", self.hidden, (self.patch,) * 2, TOKENS, channels=self.channels, bias=self.bias)
            whole = ops.cat(t, (text, ops.view(image, (TOKENS, hidden))), (JOINT_TOKENS, hidden))
            if self.positions:
                t.buffer("pos_embedding", (Dim("p", self.positions), hidden), t.setup.weights)
                whole = ops.unary(t, "add", whole, keeps="nothing")
        return whole


class VideoTail(Record, frozen=True):
    """Two norms, the second with scale and shift, and the product back to a patch."""

    hidden: int
    time: int
    out: int
    affine: bool

    def forward(self, t: Tape, x: Value) -> Value:
        """(n, h) -> (n, C·p²)."""
        x = layer_norm(t, x, "norm_final", affine=self.affine)
        shift, scale = modulation(t, condition(t, self.time, x), "norm_out", self.hidden, 2)
        with t.scope("norm_out"):
            x = modulated(t, layer_norm(t, x, "norm", affine=self.affine), scale, shift)
        return linear(t, x, "proj_out", Dim("C·p²", self.out), bias=True)
