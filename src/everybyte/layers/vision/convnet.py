"""Blocks of convolution networks as torchvision writes them: plain, and the residual blocks of ResNet."""

from __future__ import annotations

from everybyte.basics.record import Record
from everybyte.layers.common.conv import after_relu, average, batch_norm, conv, frozen_batch_norm, max_pool, pixels, relu_
from everybyte.layers.common.linear import linear
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import SEQUENCES, Dim
from everybyte.layers.recording.tape import Tape, Value


def normalised(t: Tape, x: Value, leaf: str, norm: str) -> Value:
    """BatchNorm, one that is never trained, or none."""
    if norm == "batchnorm":
        return batch_norm(t, x, leaf)
    return frozen_batch_norm(t, x, leaf) if norm == "frozen" else x


class ConvBlock(Record, frozen=True):
    """Convolution, norm, ReLU in place, and a max pool behind it where `pool` is larger than 1."""

    channels: int
    kernel: int
    norm: str
    down: int
    """Sides of its own map are 1/down of those of the image, before the pool."""
    pool: int = 1
    names: tuple[str, str] = ("conv", "bn")
    input: bool = False
    """What it is given is the image, which needs no gradient."""
    pooled: bool = False
    """What it is given is the result of a pool, which nobody else keeps."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, C) -> (n/..., channels)."""
        x = ops.detach(x) if self.input else (x if self.pooled else after_relu(x))
        x = conv(t, x, self.names[0], self.channels, (self.kernel,) * 2, pixels(self.down), bias=self.norm == "none")
        x = relu_(t, normalised(t, x, self.names[1], self.norm))
        return max_pool(t, x, pixels(self.down * self.pool)) if self.pool > 1 else x


class Residual(Record, frozen=True):
    """relu(x + f(x)): `basic` two 3x3 convolutions, `bottleneck` 1x1, 3x3, 1x1; x through a 1x1 convolution where its shape changes."""

    kind: str
    inside: int
    """Channels of what it is given."""
    width: int
    """Channels between its convolutions."""
    channels: int
    down: int
    stride: int
    norm: str = "batchnorm"
    groups: int = 1
    first: bool = False
    """Nothing before it is trained: what it is given needs no gradient (frozen stages of a detector)."""
    pooled: bool = False
    """What it is given is the result of a pool, which nobody else keeps."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, inside) -> (n/stride², channels)."""
        x = ops.detach(x) if self.first else (x if self.pooled else after_relu(x))
        to = pixels(self.down)
        if self.kind == "bottleneck":
            plan = [(self.width, 1, x.dims[0], 1), (self.width, 3, to, self.groups), (self.channels, 1, to, 1)]
        else:
            plan = [(self.channels, 3, to, 1), (self.channels, 3, to, 1)]
        y = x
        for index, (width, kernel, rows, groups) in enumerate(plan, 1):
            y = conv(t, y, f"conv{index}", width, (kernel,) * 2, rows, bias=False, groups=groups)
            y = normalised(t, y, f"bn{index}", self.norm)
            y = relu_(t, y) if index < len(plan) else y
        if self.stride > 1 or self.inside != self.channels:
            x = normalised(t, conv(t, x, "downsample.0", self.channels, (1, 1), to, bias=False), "downsample.1", self.norm)
        return relu_(t, ops.add_(t, y, x))


class Pooled(Record, frozen=True):
    """The mean over the pixels of every channel: (n, C) -> (b, C)."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, C) -> (b, C)."""
        return average(t, after_relu(x))


class Dense(Record, frozen=True):
    """Linear layers with ReLU on the flattened map, with dropout behind each (VGG)."""

    inside: int
    widths: tuple[int, ...]
    dropout: float
    pooled: bool = False
    """What it is given is the result of a pool, which nobody else keeps."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, C) -> (b, last width)."""
        x = ops.view(x if self.pooled else after_relu(x), (SEQUENCES, Dim("C·H·W", self.inside)))
        for index, width in enumerate(self.widths):
            x = ops.dropout(t, relu_(t, linear(t, x, f"classifier.{index}", Dim("f", width), bias=True)), self.dropout)
        return x
