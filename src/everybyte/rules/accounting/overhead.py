"""What the process needs beside tensors: library workspaces inside the allocator, the CUDA context outside it."""

from __future__ import annotations

from typing import cast

from everybyte.basics.units import KiB, MiB
from everybyte.catalog.generations import generation_of, major_of
from everybyte.ledger.build import Line, plain
from everybyte.ledger.entry import Basis

CUBLAS_SOURCE = "pytorch aten/src/ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize"
CONTEXT_SOURCE = (
    "nvidia-smi minus reserved bytes of one process: 0.42 GiB (RTX 6000 Ada, torch 2.10, CUDA 13); "
    "0.27 GiB with lazy, 0.62 GiB with eager module loading (pytorch #86509)"
)


def cublas_workspace(compute_capability: str) -> int:
    """Bytes of one cuBLAS handle's workspace: 32 MiB on Hopper and later, else 2·4,096 KiB + 8·16 KiB."""
    return 32 * MiB if major_of(compute_capability) >= 9 else (2 * 4096 + 8 * 16) * KiB


def workspace_line(compute_capability: str, handles: int) -> Line:
    """cuBLAS workspaces: one a thread that multiplies; training has two, as backward runs on autograd's own thread."""
    one = cublas_workspace(compute_capability)
    return Line("workspace/cublas", "workspace", handles * one, plain("handles·w", handles=handles, w=one), CUBLAS_SOURCE, "formula")


def context(compute_capability: str) -> tuple[int, Basis]:
    """Bytes of the CUDA context by GPU generation, and how they are known: measured on Ada (8.9); Pascal to Turing take the figure that came with lazy
    loading, later generations that of Ada, until somebody measures them (tests/gpu/measure.py does)."""
    found = generation_of(compute_capability)
    return found.context_bytes, cast("Basis", found.context_basis)


def context_line(compute_capability: str) -> Line:
    """The context of the driver (CUDA, HIP or Metal): outside the allocator, seen by the vendor's tool."""
    size, basis = context(compute_capability)
    is_cuda = compute_capability[:1].isdigit()
    driver = "cuda" if is_cuda else "metal" if compute_capability == "metal" else "hip" if compute_capability.startswith("gfx") else "driver"
    source = CONTEXT_SOURCE if is_cuda else f"taken as large as CUDA's, not measured ({CONTEXT_SOURCE})"
    return Line(f"context/{driver}", "context", size, plain("context", context=size), source, basis)
