"""Bytes kept for backward by convolution networks, to the byte against plain torch.nn modules on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from module_bytes import difference, layer_keeps, module_keeps
from torch import nn

from everybyte.layers.common.conv import pixels
from everybyte.layers.network import write
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.layers.recording.size import Batch, Dim, Point
from everybyte.layers.vision.convnet import ConvBlock, Residual
from everybyte.models.count import parts
from everybyte.models.shape import network_of_shape

B, SIDE = 2, 16
BOTH = pytest.mark.parametrize("amp", [False, True], ids=["bf16", "autocast"])


class Bottleneck(nn.Module):
    """The residual block of ResNet-50 and its relatives, as torchvision writes it."""

    def __init__(self, inside: int, width: int, channels: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, channels, 1, bias=False), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        changes = stride > 1 or inside != channels
        self.downsample = nn.Sequential(nn.Conv2d(inside, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)) if changes else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """relu(x + f(x))."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class Basic(nn.Module):
    """The residual block of ResNet-18 and 34."""

    def __init__(self, inside: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        changes = stride > 1 or inside != channels
        self.downsample = nn.Sequential(nn.Conv2d(inside, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)) if changes else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """relu(x + f(x))."""
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


def image(amp: bool, channels: int, *, grad: bool = True) -> torch.Tensor:
    """A map that an earlier layer made."""
    x = torch.randn(B, channels, SIDE, SIDE, dtype=torch.float32 if amp else torch.bfloat16, requires_grad=grad)
    return x * 1 if grad else x


def agree(module: nn.Module, x: torch.Tensor, layer: Any, channels: int, amp: bool) -> None:
    """Both keep the same number of storages of every size."""
    measured = module_keeps(module, lambda: module(x), amp, (x,) if x.requires_grad else ())
    ours = layer_keeps(layer, (pixels(1), Dim("C", channels)), Batch(B, SIDE * SIDE, SIDE * SIDE), amp)
    assert measured == ours, difference(measured, ours)


@BOTH
@pytest.mark.parametrize(("inside", "stride", "groups"), [(64, 1, 1), (32, 1, 1), (32, 2, 1), (64, 2, 4)])
def test_bottleneck(amp: bool, inside: int, stride: int, groups: int) -> None:
    """A bottleneck that keeps its shape, widens, halves the sides, or has grouped convolutions."""
    module = Bottleneck(inside, 16, 64, stride, groups).to(torch.float32 if amp else torch.bfloat16)
    agree(module, image(amp, inside), Residual("bottleneck", inside, 16, 64, stride, stride, groups=groups), inside, amp)


@BOTH
@pytest.mark.parametrize("stride", [1, 2])
def test_basic_block(amp: bool, stride: int) -> None:
    """The block of two 3x3 convolutions."""
    module = Basic(32, 32 * stride, stride).to(torch.float32 if amp else torch.bfloat16)
    agree(module, image(amp, 32), Residual("basic", 32, 32 * stride, 32 * stride, stride, stride), 32, amp)


@BOTH
@pytest.mark.parametrize("norm", ["batchnorm", "none"])
def test_plain_block_with_a_pool(amp: bool, norm: str) -> None:
    """Convolution, norm, ReLU in place, max pool with its int64 indices: the stem of ResNet, a stage of VGG."""
    middle = [nn.BatchNorm2d(24)] if norm == "batchnorm" else []
    module = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1, bias=norm == "none"), *middle, nn.ReLU(inplace=True), nn.MaxPool2d(2))
    module.to(torch.float32 if amp else torch.bfloat16)
    agree(module, image(amp, 3, grad=False), ConvBlock(24, 3, norm, 1, 2, input=True), 3, amp)


def test_a_whole_small_resnet() -> None:
    """Stem, two stages, the mean and the classifier, with the loss: the sum over the parts of the shape is what PyTorch keeps, in bf16."""
    shape = {
        "family": "cnn",
        "image": SIDE,
        "classes": 10,
        "stages": [{"channels": 24, "stride": 2}, {"block": "basic", "channels": 24, "blocks": 2}, {"block": "bottleneck", "channels": 64, "stride": 2}],
    }
    network = network_of_shape(shape)
    body = nn.Sequential(
        nn.Conv2d(3, 24, 3, 2, 1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(inplace=True),
        Basic(24, 24, 1),
        Basic(24, 24, 1),
        Bottleneck(24, 16, 64, 2, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    ).to(torch.bfloat16)
    x, labels = image(amp=False, channels=3, grad=False), torch.randint(0, 10, (B,))
    measured = module_keeps(body, lambda: nn.functional.cross_entropy(body(x), labels), outside=(x, labels))
    setup, point = Setup(kernels=Kernels(device="cpu")), Point(Batch(B, SIDE * SIDE, SIDE * SIDE))
    ours = 0
    for part in parts(network):
        tally = write(part.layer, setup, part.dims, setup.weights, is_last=part.label == "head").tally
        ours += part.copies * sum(s.size.at(point) for s in tally.kept)
    scalars = 4 + 2  # the loss's total weight, and the mean as PyTorch types it
    pixels_in = B * 3 * SIDE * SIDE * 2
    assert abs(sum(size * count for size, count in measured.items()) + pixels_in - ours) <= scalars
