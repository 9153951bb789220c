"""What the process needs beside tensors: library workspaces inside the allocator, the CUDA context outside it."""

from __future__ import annotations

from everybyte.basics.units import GiB, KiB, MiB
from everybyte.ledger.build import Line, plain

CUBLAS_SOURCE = "pytorch aten/src/ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize"
CONTEXT_SOURCE = (
    "nvidia-smi minus reserved bytes of one process: 0.42 GiB (RTX 6000 Ada, torch 2.10, CUDA 13); "
    "0.27 GiB with lazy, 0.62 GiB with eager module loading (pytorch #86509)"
)


def cublas_workspace(compute_capability: str) -> int:
    """Bytes of one cuBLAS handle's workspace: 32 MiB on Hopper and later, else 2·4,096 KiB + 8·16 KiB."""
    try:
        major = int(compute_capability.split(".", maxsplit=1)[0])
    except ValueError:
        major = 8
    return 32 * MiB if major >= 9 else (2 * 4096 + 8 * 16) * KiB


def workspace_line(compute_capability: str, handles: int) -> Line:
    """cuBLAS workspaces: one a thread that multiplies; training has two, as backward runs on autograd's own thread."""
    one = cublas_workspace(compute_capability)
    return Line("workspace/cublas", "workspace", handles * one, plain("handles·w", handles=handles, w=one), CUBLAS_SOURCE, "formula")


CONTEXT_BYTES = int(0.42 * GiB)
"""CUDA context with the kernels of a training process, where nothing closer is known for the card."""


def context_line() -> Line:
    """The CUDA context: outside the allocator, seen by nvidia-smi."""
    return Line("context/cuda", "context", CONTEXT_BYTES, plain("context", context=CONTEXT_BYTES), CONTEXT_SOURCE, "calibrated")
