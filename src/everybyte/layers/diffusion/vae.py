"""The autoencoder of latent diffusion (diffusers autoencoder_kl.py, vae.py)."""

from __future__ import annotations

from everybyte.basics.record import Record
from everybyte.layers.attention.kernels import Heads, sdpa
from everybyte.layers.common.conv import conv, group_norm, pixels, resized
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import activate
from everybyte.layers.diffusion.unet import THREE, by_pixel, resnet
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Dim
from everybyte.layers.recording.tape import Tape, Value


def middle(t: Tape, x: Value, groups: int, attention: bool) -> Value:
    """Two residual blocks with attention of one head over all pixels between them."""
    width = x.dims[-1].size
    with t.scope("mid_block"):
        x = resnet(t, x, "resnets.0", width, groups, None)
        if attention:
            x = _attention(t, x, "attentions.0", groups)
        return resnet(t, x, "resnets.1", width, groups, None)


def _attention(t: Tape, x: Value, leaf: str, groups: int) -> Value:
    width = x.dims[-1]
    with t.scope(leaf, x):
        normed = group_norm(t, x, "group_norm", groups)
        # each projection brings the pixels together by a copy of its own
        q, k, v = (linear(t, by_pixel(t, normed), name, width, bias=True) for name in ("to_q", "to_k", "to_v"))
        out = sdpa(t, q, k, v, Heads(1, 1, width.size, width.size))
        return ops.scale(t, ops.add(t, linear(t, out, "to_out.0", width, bias=True), x))


class Encoder(Record, frozen=True):
    """Pixels of the image to twice the channels of the latent: mean and spread. The border that each halving pads is left out."""

    channels: tuple[int, ...]
    latent: int
    blocks: int
    groups: int
    attention: bool
    quant: bool

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n·4^k, C) -> (n, 2z)."""
        scale = 2 ** (len(self.channels) - 1)
        with t.scope("encoder"):
            x = conv(t, ops.detach(x), "conv_in", self.channels[0], THREE)
            for index, width in enumerate(self.channels):
                with t.scope(f"down_blocks.{index}"):
                    for block in range(self.blocks):
                        x = resnet(t, x, f"resnets.{block}", width, self.groups, None)
                    if index < len(self.channels) - 1:
                        scale //= 2
                        padded = resized(t, "pad", x, x.dims[0])
                        x = conv(t, padded, "downsamplers.0.conv", width, THREE, pixels(1, scale))
            x = middle(t, x, self.groups, self.attention)
            x = activate(t, group_norm(t, x, "conv_norm_out", self.groups), "silu")
            x = conv(t, x, "conv_out", 2 * self.latent, THREE)
        return conv(t, x, "quant_conv", 2 * self.latent, (1, 1)) if self.quant else x


class Decoder(Record, frozen=True):
    """The latent to the pixels of the image."""

    channels: tuple[int, ...]
    out: int
    latent: int
    blocks: int
    groups: int
    attention: bool
    quant: bool

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, z) -> (n·4^k, C)."""
        x = ops.detach(x)
        if self.quant:
            x = conv(t, x, "post_quant_conv", self.latent, (1, 1))
        with t.scope("decoder"):
            x = middle(t, conv(t, x, "conv_in", self.channels[-1], THREE), self.groups, self.attention)
            for index, width in enumerate(reversed(self.channels)):
                with t.scope(f"up_blocks.{index}"):
                    for block in range(self.blocks + 1):
                        # attention in the middle hands on maps that lie pixel by pixel, unless there is one image
                        copied = self.attention and not t.setup.single
                        x = resnet(t, x, f"resnets.{block}", width, self.groups, None, copied=copied)
                    if index < len(self.channels) - 1:
                        x = conv(t, resized(t, "interpolate", x, pixels(1, 2 ** (index + 1))), "upsamplers.0.conv", width, THREE)
            x = activate(t, group_norm(t, x, "conv_norm_out", self.groups), "silu")
            return conv(t, x, "conv_out", self.out, THREE)


def image_map(scale: int, channels: int) -> tuple[Dim, Dim]:
    """(n·scale², C): the image of a latent whose sides are 1/scale as long."""
    return (pixels(1, scale), Dim("C", channels))
