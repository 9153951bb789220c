"""Memory that kernels take from the allocator and give back inside one operation, where no tensor of the program shows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from everybyte.catalog.gpus import Gpu

aten = torch.ops.aten
FLASH_BLOCK = 128
"""Rows that flash attention rounds sequences up to in its backward pass (flash_attn/flash_api.cpp: seqlen_q_rounded)."""


class Hidden:
    """Called with each operation; says the bytes of its inner allocations."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def __call__(self, func: Any, args: Any) -> Iterable[int]:
        """Bytes of each inner allocation of the operation, all alive at once."""
        if func is aten._scaled_dot_product_flash_attention_backward.default:
            return _flash_backward(args[1], args[2])
        return ()


def _flash_backward(q: torch.Tensor, k: torch.Tensor) -> tuple[int, ...]:
    """flash_api.cpp (mha_bwd): the gradient of the queries summed in fp32, the row sums of the softmax, and for grouped heads gradients of keys and values
    for each query head, which are summed afterwards."""
    batch, heads, length, size = q.shape
    rows = -(-length // FLASH_BLOCK) * FLASH_BLOCK
    rounded = -(-size // 32) * 32
    sums = batch * heads * rows * 4
    queries = batch * rows * heads * rounded * 4
    expanded = batch * k.shape[2] * heads * size * q.element_size() if heads != k.shape[1] else 0
    return tuple(nbytes for nbytes in (sums, queries, expanded, expanded) if nbytes)
