"""The autoencoder of CogVideoX: causal convolutions over frames (diffusers autoencoder_kl_cogvideox.py).

Frames come in groups, and every causal convolution keeps the last two frames of what it was given for the next group. The caches of the group before live
while those of this one are made. Tokens are pixels of the latent frames of one group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from everybyte.basics.record import Record
from everybyte.layers.common.conv import conv, group_norm, resized
from everybyte.layers.common.mlp import activate
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import TOKENS, B, Dim, Dims, S
from everybyte.layers.recording.tape import Tape, Value

THREE = (3, 3, 3)
FLAT = (3, 3)
ONE = (1, 1, 1)
GROUP = 2
"""Latent frames that are decoded together (num_latent_frames_batch_size), and frames that a causal convolution remembers."""


class Scale(NamedTuple):
    """How many times as long the sides of a map are as those of the latent, and how many frames it has for each latent one."""

    side: int
    time: int

    def frames(self, more: int = 0) -> Dim:
        """Pixels of all frames of a group, and of `more` times GROUP frames before them."""
        count = self.side**2 * (self.time + more)
        return TOKENS if count == 1 else Dim(f"{count}n", count, (B, S))

    def remembered(self) -> Dim:
        """Pixels of GROUP frames."""
        count = self.side**2
        return TOKENS if count == 1 else Dim(f"{count}n", count, (B, S))


class VideoDecoder(Record, frozen=True):
    """The latent frames of one group to frames of pixels."""

    channels: tuple[int, ...]
    out: int
    latent: int
    blocks: int
    groups: int
    longer: int
    """Levels that double the frames."""
    sets: Literal["new", "old and new", "kept by modules"] = "old and new"
    """Which remembered frames live: those of this group, those of the group before beside them, or one set that each module replaces."""

    def levels(self) -> list[tuple[int, Scale]]:
        """(channels, scale) of each level on the way up."""
        return [(width, Scale(2**index, 2 ** min(index, self.longer))) for index, width in enumerate(reversed(self.channels))]

    def resnets(self) -> list[tuple[int, int, Scale]]:
        """(channels in, channels out, scale) of every residual block."""
        width = self.channels[-1]
        found = [(width, width, Scale(1, 1))] * 2
        for out, scale in self.levels():
            found += [(width, out, scale), *[(out, out, scale)] * self.blocks]
            width = out
        return found

    def caches(self) -> list[Dims]:
        """What the causal convolutions remember of one group, in the order in which they run. One whose kernel has a single frame copies all that it is
        given: a slice from -0 on."""
        found: list[Dims] = [(Scale(1, 1).remembered(), Dim("C", self.latent))]
        for inside, out, scale in self.resnets():
            for width in (inside, out):
                found += [(scale.frames(), Dim("C", self.latent))] * 2
                found.append((scale.remembered(), Dim("C", width)))
        width, scale = self.levels()[-1]
        return [*found, *[(scale.frames(), Dim("C", self.latent))] * 2, (scale.remembered(), Dim("C", width))]

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, z) -> (n·s²·f, C)."""
        z, fresh = ops.detach(x), iter(self.caches() if self.sets != "kept by modules" else ())
        for dims in self.caches() if self.sets != "new" and not t.setup.grad else ():
            t.until_end(ops.made(t, "cache of the group before", dims, z.dtype))
        with t.scope("decoder"):
            x = _causal(t, z, "conv_in", self.channels[-1], Scale(1, 1), fresh)
            for index in range(2):
                x = _resnet(t, x, f"mid_block.resnets.{index}", x.dims[-1].size, Scale(1, 1), fresh, z=z, groups=self.groups)
            for level, (out, scale) in enumerate(self.levels()):
                with t.scope(f"up_blocks.{level}", x):
                    for block in range(self.blocks + 1):
                        x = _resnet(t, x, f"resnets.{block}", out, scale, fresh, z=z, groups=self.groups)
                    x = self._longer(t, x, level) if level < len(self.channels) - 1 else x
            scale = self.levels()[-1][1]
            x = activate(t, _spatial_norm(t, x, z, "norm_out", self.groups, fresh), "silu")
            return _causal(t, x, "conv_out", self.out, scale, fresh)

    def _longer(self, t: Tape, x: Value, level: int) -> Value:
        """Between two levels: sides twice as long, frames too where the level says so, then a convolution of each frame."""
        following = self.levels()[level + 1][1]
        # frames are brought together by a copy, and the result is turned back as a view
        bigger = ops.contiguous(t, resized(t, "interpolate", x, following.frames()))
        return conv(t, bigger, "upsamplers.0.conv", x.dims[-1].size, FLAT)


class VideoEncoder(Record, frozen=True):
    """Frames of pixels to twice the channels of the latent."""

    channels: tuple[int, ...]
    latent: int
    blocks: int
    groups: int
    longer: int

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n·s²·f, C) -> (n, 2z)."""
        count = len(self.channels)
        scales = [Scale(2 ** (count - 1 - index), 2 ** max(self.longer - index, 0)) for index in range(count)]
        fresh = iter(())
        with t.scope("encoder"):
            x = _causal(t, ops.detach(x), "conv_in", self.channels[0], scales[0], fresh)
            for index, width in enumerate(self.channels):
                for block in range(self.blocks):
                    x = _resnet(t, x, f"down_blocks.{index}.resnets.{block}", width, scales[index], fresh, groups=self.groups)
                if index < count - 1:
                    x = conv(t, x, f"down_blocks.{index}.downsamplers.0.conv", width, FLAT, scales[index + 1].frames())
            for block in range(2):
                x = _resnet(t, x, f"mid_block.resnets.{block}", self.channels[-1], scales[-1], fresh, groups=self.groups)
            x = activate(t, group_norm(t, x, "norm_out", self.groups), "silu")
            return _causal(t, x, "conv_out", 2 * self.latent, scales[-1], fresh)


def _causal(t: Tape, x: Value, leaf: str, out: int, scale: Scale, fresh: Iterator[Dims]) -> Value:
    """A convolution over frames: what it remembers is put before x, and the end of both is copied for the next group."""
    with t.scope(leaf, x):
        padded = ops.cat(t, (x,), (scale.frames(more=1), x.dims[-1]))
        _remember(t, padded, fresh)
        return conv(t, padded, "conv", out, THREE, scale.frames())


def _remember(t: Tape, x: Value, fresh: Iterator[Dims]) -> None:
    dims = next(fresh, None)
    if dims is not None and not t.setup.grad:
        kept = t.new("cache of frames", dims, x.dtype, False)
        t.step("clone", (x,), (kept,))
        t.until_end(kept)


def _spatial_norm(t: Tape, x: Value, z: Value, leaf: str, groups: int, fresh: Iterator[Dims]) -> Value:
    """`norm(x)·y(z) + b(z)` with the latent z at the size of x (CogVideoXSpatialNorm3D)."""
    with t.scope(leaf, x):
        latent = resized(t, "interpolate", z, x.dims[0])
        parts = []
        t.hold(latent)
        for name in ("conv_y", "conv_b"):
            _remember(t, latent, fresh)
            with t.scope(name):
                parts.append(conv(t, latent, "conv", x.dims[-1].size, ONE))
        normed = group_norm(t, x, "norm_layer", groups)
        t.hold(*parts, normed)
        return ops.add(t, ops.mul(t, normed, parts[0]), parts[1])


def _resnet(t: Tape, x: Value, leaf: str, out: int, scale: Scale, fresh: Iterator[Dims], *, groups: int, z: Value | None = None) -> Value:
    """Two causal convolutions, each behind a norm (by the latent z, in the decoder) and SiLU; x itself added."""
    with t.scope(leaf, x):
        inner = x
        for number in (1, 2):
            normed = group_norm(t, inner, f"norm{number}", groups) if z is None else _spatial_norm(t, inner, z, f"norm{number}", groups, fresh)
            inner = _causal(t, activate(t, normed, "silu"), f"conv{number}", out, scale, fresh)
        if x.dims[-1].size != out:
            x = conv(t, x, "conv_shortcut", out, ONE)
        return ops.add(t, inner, x)
