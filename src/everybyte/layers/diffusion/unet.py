"""U-Nets of diffusion models (diffusers unet_2d_condition.py, unet_2d_blocks.py, resnet.py, transformer_2d.py, attention.py)."""

from __future__ import annotations

from everybyte.basics.record import Record
from everybyte.layers.attention.kernels import Heads, sdpa
from everybyte.layers.common.conv import conv, group_norm, pixels, resized
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import activate
from everybyte.layers.common.norm import layer_norm
from everybyte.layers.diffusion.dit import small_mlp
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import MEMORY_TOKENS, Dim
from everybyte.layers.recording.tape import Tape, Value

THREE = (3, 3)


def resnet(t: Tape, x: Value, leaf: str, out: int, groups: int, temb: Value | None, *, copied: bool = False) -> Value:
    """Two convolutions, each behind a norm and SiLU, the time step added between them; x itself (through a convolution where the width changes) added.

    `copied`: x lies pixel by pixel, and training copies it channel by channel before that convolution.
    """
    with t.scope(leaf, x):
        inner = conv(t, activate(t, group_norm(t, x, "norm1", groups), "silu"), "conv1", out, THREE)
        if temb is not None:
            inner = ops.add(t, inner, linear(t, activate(t, temb, "silu"), "time_emb_proj", Dim("C", out), bias=True))
        inner = conv(t, activate(t, group_norm(t, inner, "norm2", groups), "silu"), "conv2", out, THREE)
        if x.dims[-1].size != out:
            x = ops.contiguous(t, x) if copied and t.setup.grad else x
            x = conv(t, x, "conv_shortcut", out, (1, 1))
        return ops.scale(t, ops.add(t, x, inner))


class Cross(Record, frozen=True):
    """Transformers inside a U-Net: `depth` blocks of self-attention, attention to the prompt and GEGLU on the pixels of a map."""

    heads: int
    depth: int
    prompt: int
    """Width of the prompt's states."""
    linear: bool
    """Projections around the blocks are linear layers, not 1x1 convolutions (Stable Diffusion XL)."""
    groups: int

    def forward(self, t: Tape, x: Value, leaf: str) -> Value:
        """x (n, C) -> (n, C)."""
        width = x.dims[-1].size
        with t.scope(leaf, x):
            y = group_norm(t, x, "norm", self.groups)
            y = linear(t, by_pixel(t, y), "proj_in", x.dims[-1], bias=True) if self.linear else conv(t, y, "proj_in", width, (1, 1))
            for index in range(self.depth):
                y = self._block(t, y, f"transformer_blocks.{index}")
            if self.linear:
                y = ops.contiguous(t, linear(t, y, "proj_out", x.dims[-1], bias=True))
            else:
                y = conv(t, ops.contiguous(t, y), "proj_out", width, (1, 1))
            return ops.add(t, y, x)

    def _block(self, t: Tape, x: Value, leaf: str) -> Value:
        with t.scope(leaf):
            prompt = t.from_outside("prompt states", (MEMORY_TOKENS, Dim("h_t", self.prompt)), t.setup.weights, grad=False)
            x = ops.add(t, self._attention(t, layer_norm(t, x, "norm1"), None, "attn1"), x)
            x = ops.add(t, self._attention(t, layer_norm(t, x, "norm2"), prompt, "attn2"), x)
            return ops.add(t, self._geglu(t, layer_norm(t, x, "norm3")), x)

    def _attention(self, t: Tape, x: Value, memory: Value | None, leaf: str) -> Value:
        width = x.dims[-1]
        head_dim = width.size // self.heads
        with t.scope(leaf, x):
            source = x if memory is None else memory
            q = linear(t, x, "to_q", width)
            k, v = linear(t, source, "to_k", width), linear(t, source, "to_v", width)
            out = sdpa(t, q, k, v, Heads(self.heads, self.heads, head_dim, head_dim))
            # AttnProcessor2_0 divides by rescale_output_factor, 1 or not
            return ops.scale(t, linear(t, out, "to_out.0", width, bias=True))

    def _geglu(self, t: Tape, x: Value) -> Value:
        width = x.dims[-1].size
        with t.scope("ff"):
            both = linear(t, x, "net.0.proj", Dim("2f", 8 * width), bias=True)
            kept, gate = ops.split(t, both, [(x.dims[0], Dim("f", 4 * width))] * 2)
            return linear(t, ops.mul(t, kept, activate(t, gate, "gelu")), "net.2", x.dims[-1], bias=True)


def by_pixel(t: Tape, x: Value) -> Value:
    """A map lies channel by channel; a product over channels needs it pixel by pixel: a copy, unless there is one image."""
    x = ops.autocast(t, x)
    return x if t.setup.single else ops.contiguous(t, x)


class Level(Record, frozen=True):
    """One resolution of a U-Net."""

    channels: int
    down: Cross | None
    """Attention on the way down; None for convolutions alone."""
    up: Cross | None


class UNet(Record, frozen=True):
    """Down through the levels, a middle, and up again; every map on the way down is kept for its partner on the way up."""

    inside: int
    out: int
    levels: tuple[Level, ...]
    blocks: int
    """Residual blocks of a level on the way down; one more on the way up."""
    groups: int
    middle: Cross
    added: int = 0
    """Width of a further condition (sizes and pooled prompt of Stable Diffusion XL)."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, C) -> (n, C)."""
        first = self.levels[0].channels
        temb = small_mlp(t, "time_embedding", first, 4 * first)
        if self.added:
            temb = ops.add(t, temb, small_mlp(t, "add_embedding", self.added, 4 * first))
        x = conv(t, ops.detach(x), "conv_in", first, THREE)
        skips = [x]
        for index, level in enumerate(self.levels):
            x = self._down(t, x, temb, index, level, skips)
        with t.scope("mid_block"):
            x = resnet(t, x, "resnets.0", x.dims[-1].size, self.groups, temb)
            x = self.middle.forward(t, x, "attentions.0")
            x = resnet(t, x, "resnets.1", x.dims[-1].size, self.groups, temb)
        for index, level in enumerate(reversed(self.levels)):
            x = self._up(t, x, temb, index, level, skips)
        x = activate(t, group_norm(t, x, "conv_norm_out", self.groups), "silu")
        return conv(t, x, "conv_out", self.out, THREE)

    def _down(self, t: Tape, x: Value, temb: Value, index: int, level: Level, skips: list[Value]) -> Value:
        with t.scope(f"down_blocks.{index}"):
            for block in range(self.blocks):
                x = resnet(t, x, f"resnets.{block}", level.channels, self.groups, temb)
                x = level.down.forward(t, x, f"attentions.{block}") if level.down else x
                skips.append(x)
            if index < len(self.levels) - 1:
                x = conv(t, x, "downsamplers.0.conv", level.channels, THREE, pixels(2 ** (index + 1)))
                skips.append(x)
        return x

    def _up(self, t: Tape, x: Value, temb: Value, index: int, level: Level, skips: list[Value]) -> Value:
        with t.scope(f"up_blocks.{index}"):
            for block in range(self.blocks + 1):
                skip = skips.pop()
                x = ops.cat(t, (x, skip), (x.dims[0], Dim("C", x.dims[-1].size + skip.dims[-1].size)))
                x = resnet(t, x, f"resnets.{block}", level.channels, self.groups, temb)
                x = level.up.forward(t, x, f"attentions.{block}") if level.up else x
            if index < len(self.levels) - 1:
                bigger = pixels(2 ** (len(self.levels) - 2 - index))
                x = conv(t, resized(t, "interpolate", x, bigger), "upsamplers.0.conv", level.channels, THREE)
        return x
