"""Workspaces of cuBLAS by generation."""

from __future__ import annotations

import pytest

from everybyte.basics.units import KiB, MiB
from everybyte.rules.accounting.overhead import cublas_workspace, workspace_line


@pytest.mark.parametrize(
    ("compute_capability", "nbytes"), [("7.5", 8320 * KiB), ("8.0", 8320 * KiB), ("8.9", 8320 * KiB), ("9.0", 32 * MiB), ("10.0", 32 * MiB)]
)
def test_a_handles_workspace(compute_capability: str, nbytes: int) -> None:
    """Hopper and later have 32 MiB a handle, earlier ones two of 4,096 KiB and eight of 16 (CublasHandlePool.cpp); every handle has its own."""
    assert cublas_workspace(compute_capability) == nbytes
    assert workspace_line(compute_capability, 2).bytes == 2 * nbytes
