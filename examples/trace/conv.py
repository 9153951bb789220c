"""One convolution, as introductions to GPU memory compute it by hand: [32, 64, 128, 128] in, 128 channels out, fp32.

everybyte trace examples/trace/conv.py:build --gpu rtx-4090 --explain
"""

import torch


def build() -> tuple[torch.nn.Module, torch.Tensor]:
    """The layer and its input, both on the GPU."""
    layer = torch.nn.Conv2d(64, 128, kernel_size=3, padding=1).to("cuda")
    image = torch.randn(32, 64, 128, 128, device="cuda")
    return layer, image
