"""Networks of transformers at their usual size, as (module, inputs) on the GPU."""

from __future__ import annotations

import torch
import transformers

IMAGES = (4, 3, 224, 224)


def resnet50() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """ResNet-50."""
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000)).cuda()
    return model, {"pixel_values": torch.randn(IMAGES, device="cuda"), "labels": torch.zeros(4, dtype=torch.int64, device="cuda")}


def convnext() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """ConvNeXt-T, which computes its drop-path rates on the CPU and reads them."""
    model = transformers.ConvNextForImageClassification(transformers.ConvNextConfig(num_labels=1000)).cuda()
    return model, {"pixel_values": torch.randn(IMAGES, device="cuda"), "labels": torch.zeros(4, dtype=torch.int64, device="cuda")}
