"""What stands before and behind the blocks of a diffusion transformer."""

from __future__ import annotations

from everybyte.basics.record import Record
from everybyte.layers.common.conv import conv
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import activate
from everybyte.layers.diffusion.adaln import condition, modulated, modulation, plain_norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import JOINT_TOKENS, MEMORY_TOKENS, SEQUENCES, TOKENS, Dim
from everybyte.layers.recording.tape import Made, Tape, Value

FREQUENCIES = 256
"""Sines and cosines of the time step (diffusers Timesteps)."""


def small_mlp(t: Tape, leaf: str, source: int, hidden: int, *, given: bool = False) -> Value:
    """linear_2(silu(linear_1(x))) of one row a sequence; x is made here (sines and cosines of a number), or `given`."""
    dims = (SEQUENCES, Dim("c", source))
    x = t.given("condition", dims, t.setup.weights) if given else t.new("condition", dims, t.setup.weights, grad=False)
    if not given:
        t.step("condition", (), (x,))
    with t.scope(leaf):
        inner = activate(t, linear(t, x, "linear_1", Dim("h", hidden), bias=True), "silu")
        return linear(t, inner, "linear_2", Dim("h", hidden), bias=True)


class JointStem(Record, frozen=True):
    """Latent patches and prompt states brought to the width of the blocks; the time step's embedding beside them."""

    channels: int
    """Of one patch."""
    prompt: int
    """Width of the text encoder's states."""
    pooled: int
    """Width of the pooled prompt."""
    hidden: int
    guidance: bool = False
    patch: int = 0
    """Side of the patches that a convolution cuts out (Stable Diffusion 3); 0: the latents come as patches (Flux)."""
    positions: int = 0
    """Rows of the fixed table of positions."""

    def forward(self, t: Tape, x: Value) -> Value:
        """(n, patch) -> (j, h)."""
        hidden = Dim("h", self.hidden)
        latent = ops.detach(x)
        if self.patch:
            t.buffer("pos_embed.pos_embed", (Dim("p", self.positions), hidden), t.setup.weights)
            out = conv(t, latent, "pos_embed.proj", self.hidden, (self.patch, self.patch), TOKENS, channels=self.channels // self.patch**2)
            image = ops.unary(t, "add", ops.view(out, (TOKENS, hidden)), keeps="nothing")
        else:
            image = linear(t, latent, "x_embedder", hidden, bias=True)
        with t.scope("time_text_embed"):
            parts = [small_mlp(t, "timestep_embedder", FREQUENCIES, self.hidden)]
            parts.append(small_mlp(t, "text_embedder", self.pooled, self.hidden, given=True))
            if self.guidance:
                parts.append(small_mlp(t, "guidance_embedder", FREQUENCIES, self.hidden))
            temb = parts[0]
            for part in parts[1:]:
                temb = ops.add(t, temb, part)
            t.until_end(temb)
        prompt = t.given("prompt states", (MEMORY_TOKENS, Dim("h_t", self.prompt)), x.dtype)
        text = linear(t, prompt, "context_embedder", hidden, bias=True)
        whole = t.new("streams", (JOINT_TOKENS, hidden), image.dtype, image.grad or text.grad)
        t.step("streams", (image, text), (whole,), made=[Made(image, None), Made(text, None)])
        return whole


class ImageTail(Record, frozen=True):
    """norm·(1 + scale) + shift of the image tokens, then the product back to a patch."""

    hidden: int
    out: int
    """Numbers of one patch."""

    def forward(self, t: Tape, x: Value) -> Value:
        """(n, h) -> (n, patch)."""
        scale, shift = modulation(t, condition(t, self.hidden, x), "norm_out", self.hidden, 2)
        with t.scope("norm_out"):
            x = modulated(t, plain_norm(t, x), scale, shift)
        return linear(t, x, "proj_out", Dim("C·p²", self.out), bias=True)
