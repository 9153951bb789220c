"""In inference mode torch hands compositions of operations to a trace as they stand; their parts take the memory all the same."""

from __future__ import annotations

import pytest
import torch
from peaks import Step, measured, traced

MiB = 2**20


def test_parts_of_a_composition_take_memory() -> None:
    """einsum copies an operand whose axes it cannot merge: 4 MiB beside the product of 4 MiB, which a trace sees in inference mode too."""

    def make() -> Step:
        weights, values = torch.ones(4, 16, 256, 256), torch.ones(4, 256, 16, 64).transpose(1, 2)

        def step() -> None:
            with torch.inference_mode():
                torch.einsum("bhqk,bhkd->bhqd", weights, values)

        return step

    expected = measured(make())
    assert all(peak == pytest.approx(8 * MiB, rel=0.001) for peak in expected)
    assert traced(make) == pytest.approx(expected, rel=0.001)
