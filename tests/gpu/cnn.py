"""The convolution network of a job's shape in torch.nn, as torchvision writes ResNet: in-place ReLU and addition, BatchNorm, max pooling."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

Fields = dict[str, Any]
EXPANSION = 4


def conv_bn(inside: int, channels: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """A convolution that keeps the sides but for its stride, and its norm."""
    return [nn.Conv2d(inside, channels, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(channels)]


class Residual(nn.Module):
    """relu(f(x) + x), x through a 1x1 convolution where its shape changes."""

    def __init__(self, kind: str, inside: int, channels: int, stride: int) -> None:
        super().__init__()
        if kind == "bottleneck":
            width = channels // EXPANSION
            layers = [*conv_bn(inside, width, 1), nn.ReLU(inplace=True), *conv_bn(width, width, 3, stride), nn.ReLU(inplace=True), *conv_bn(width, channels, 1)]
        else:
            layers = [*conv_bn(inside, channels, 3, stride), nn.ReLU(inplace=True), *conv_bn(channels, channels, 3)]
        self.layers = nn.Sequential(*layers)
        self.downsample = nn.Sequential(*conv_bn(inside, channels, 1, stride)) if stride > 1 or inside != channels else None
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, inside, H, W) -> (b, channels, H/stride, W/stride)."""
        y = self.layers(x)
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


def stage(given: Fields, inside: int) -> list[nn.Module]:
    """The blocks of one stage."""
    channels, stride = given["channels"], given.get("stride", 1)
    if given["block"] == "plain":
        blocks: list[nn.Module] = [*conv_bn(inside, channels, given["kernel"], stride), nn.ReLU(inplace=True)]
        return [*blocks, nn.MaxPool2d(3, given["pool"], 1)] if "pool" in given else blocks
    return [Residual(given["block"], inside if i == 0 else channels, channels, stride if i == 0 else 1) for i in range(given["blocks"])]


class ResNet(nn.Module):
    """Stages, the mean over the pixels, a classifier, the loss."""

    def __init__(self, shape: Fields) -> None:
        super().__init__()
        inside, blocks = 3, []
        with torch.device("meta"):
            for given in shape["stages"]:
                blocks += stage(given, inside)
                inside = given["channels"]
            self.blocks = nn.Sequential(*blocks)
            self.fc = nn.Linear(inside, shape["classes"])
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean, module.running_var = torch.zeros(module.num_features), torch.ones(module.num_features)
                module.num_batches_tracked = torch.tensor(0)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace:
        """Images (b, 3, H, W) and their classes (b) -> loss and logits, as a model of transformers gives them."""
        logits = self.fc(self.blocks(pixel_values).mean((2, 3)))
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits, labels), logits=logits)


def images(job: Fields, device: str, dtype: torch.dtype) -> Fields:
    """Random images with labels."""
    shape, rows = job["model"]["shape"], job["train"]["micro_batch"]
    pixels = torch.randn(rows, 3, shape["image"], shape["image"], device=device, dtype=dtype)
    return {"pixel_values": pixels, "labels": torch.randint(0, shape["classes"], (rows,), device=device)}
