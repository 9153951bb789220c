"""A step with flex_attention, compiled as its documentation says."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.attention.flex_attention import flex_attention

SHAPE = (2, 4, 1024, 64)
attend = torch.compile(flex_attention)


def build() -> Callable[[], None]:
    """Attention that sees no later token."""
    queries, keys, values = (torch.randn(SHAPE, device="cuda", requires_grad=True) for _ in range(3))

    def causal(score: torch.Tensor, batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return torch.where(query >= key, score, -float("inf"))

    return lambda: attend(queries, keys, values, score_mod=causal).sum().backward()
