"""What autograd writes in place on real tensors, and would make anew on fake ones, is written in place in a trace."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from peaks import CLOSE, Step, measured, traced

MiB = 2**20
ROWS, COLUMNS = 512, 512


def of_gather(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x.gather(1, index)


def of_maximum(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x.max(dim=1).values


def of_index(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x[index[:, 0]]


@pytest.mark.parametrize("function", [of_gather, of_maximum, of_index])
def test_a_selection_has_one_gradient(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    """The gradient of what is selected out of a tensor of 1 MiB is scattered into zeros, without a copy: a trace has the peak of a real run."""

    def make() -> Step:
        x, index = torch.ones(ROWS, COLUMNS).requires_grad_(), torch.zeros(ROWS // 4, 1, dtype=torch.int64)

        def step() -> None:
            function(x, index).sum().backward()
            x.grad = None

        return step

    expected = measured(make())
    assert all(MiB < peak < 1.6 * MiB for peak in expected)
    assert traced(make) == pytest.approx(expected, rel=CLOSE)
