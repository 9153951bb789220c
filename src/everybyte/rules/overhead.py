"""What the process needs beside tensors: library workspaces inside the allocator, the CUDA context outside it."""

from __future__ import annotations

from everybyte.basics.units import GiB, KiB, MiB
from everybyte.ledger.build import Line, plain
from everybyte.ledger.entry import Basis

CUBLAS_SOURCE = "pytorch aten/src/ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize"
CONTEXT_SOURCE = (
    "nvidia-smi minus reserved bytes of one process: 0.42 GiB (RTX 6000 Ada, torch 2.10, CUDA 13); "
    "0.27 GiB with lazy, 0.62 GiB with eager module loading (pytorch #86509)"
)


def _major(compute_capability: str) -> int:
    """Generation of a GPU; 8 (Ampere and Ada) where the catalogue does not say."""
    major = compute_capability.split(".", maxsplit=1)[0]
    return int(major) if major.isdigit() else 8


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


CONTEXTS: dict[int, tuple[int, Basis]] = {
    6: (287_047_680, "assumed"),
    7: (287_047_680, "assumed"),
    8: (int(0.42 * GiB), "calibrated"),
    9: (int(0.42 * GiB), "assumed"),
    10: (int(0.42 * GiB), "assumed"),
    12: (int(0.42 * GiB), "assumed"),
}
"""Major compute capability -> bytes of a process's CUDA context with lazily loaded modules. Measured on Ada (8.9); Pascal to Turing take the
figure that came with lazy loading, later generations that of Ada, until somebody measures them (tests/gpu/measure.py does)."""


def context(compute_capability: str) -> tuple[int, Basis]:
    """Bytes of the CUDA context by GPU generation, and how they are known."""
    return CONTEXTS.get(_major(compute_capability), CONTEXTS[8])


def context_line(compute_capability: str) -> Line:
    """The CUDA context: outside the allocator, seen by nvidia-smi."""
    size, basis = context(compute_capability)
    return Line("context/cuda", "context", size, plain("context", context=size), CONTEXT_SOURCE, basis)
