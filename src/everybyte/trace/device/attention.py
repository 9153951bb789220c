"""Which kernel `scaled_dot_product_attention` runs on a GPU, and that kernel's tensors.

On fake tensors torch would take the plain composition of matrix products, whose scores of s·s no GPU kernel stores. The choice here follows
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (torch 2.13; the order of preference is that of `priority_order`, the conditions those of
`can_use_*_attention`); the tensors are those of the meta functions that torch registers for each kernel.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal

import torch

aten = torch.ops.aten
Kernel = Literal["cudnn", "flash", "efficient", "math"]
HALF = (torch.bfloat16, torch.float16)
FLASH_HEAD_DIM = 256
CUDNN_HEAD_DIM = 128
CUDNN_FIRST = (9, 10)
"""Major compute capabilities where cuDNN's kernel is preferred (since cuDNN 9.15.1, which wheels for CUDA 13 bring)."""
FLASH_TRAINING_GAP = range(193, 225)
"""Head sizes that flash attention does not train on consumer and workstation cards (compute capability 8.6 to 8.9, 12.x)."""

_library: Any = None


def install(compute_capability: str) -> None:
    """Lets attention on the fake device choose and run kernels as a GPU of this compute capability does."""
    global _library  # noqa: PLW0603  # the registration lives as long as its library object
    major, _, minor = compute_capability.partition(".")
    sm = (int(major), int(minor or 0))

    def attend(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        kernel = chosen(q, k, v, attn_mask, dropout_p, is_causal, sm)
        return _RUN[kernel](q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    _library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that a kernel is overridden, which is meant
        for key in ("AutogradCUDA", "CUDA"):
            _library.impl("scaled_dot_product_attention", attend, key)


def chosen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, dropout: float, causal: bool, sm: tuple[int, int]) -> Kernel:
    """The first kernel in the order of preference whose conditions hold."""
    dense = q.dim() == k.dim() == v.dim() == 4 and min(q.shape[-2], k.shape[-2]) > 0
    enabled = torch.backends.cuda
    if dense and sm[0] in CUDNN_FIRST and enabled.cudnn_sdp_enabled() and _cudnn(q, k, v, dropout):
        return "cudnn"
    if dense and enabled.flash_sdp_enabled() and _flash(q, k, v, mask, dropout, causal, sm):
        return "flash"
    if dense and enabled.mem_efficient_sdp_enabled() and _efficient(q, k, v, sm):
        return "efficient"
    return "math"


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, dropout: float, causal: bool, sm: tuple[int, int]) -> bool:
    size = q.shape[-1]
    if mask is not None or q.dtype not in HALF or sm < (8, 0) or not size == k.shape[-1] == v.shape[-1] <= FLASH_HEAD_DIM:
        return False
    if causal and q.shape[-2] != k.shape[-2]:
        return False
    small = (8, 6) <= sm <= (8, 9) or sm[0] == 12
    return not (small and _trained(q, k, v) and (size in FLASH_TRAINING_GAP or (size > FLASH_TRAINING_GAP[-1] and dropout > 0)))


def _efficient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sm: tuple[int, int]) -> bool:
    """This kernel does not group heads, even where it is told to (`check_batch_size_and_num_heads_dense<false>`)."""
    if not q.shape[-3] == k.shape[-3] == v.shape[-3]:
        return False
    half = q.dtype in HALF
    tensor_cores = sm[0] >= 8 or (sm[0] == 7 and half)
    alignment = max(4 if sm[0] >= 8 else 1, 128 // (16 if half else 32) if tensor_cores else 1)
    dtypes = (*HALF, torch.float32) if sm[0] >= 8 else (torch.float16, torch.float32)
    return q.dtype in dtypes and q.shape[-1] == k.shape[-1] and q.shape[-1] % alignment == 0 and v.shape[-1] % alignment == 0


def _cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float) -> bool:
    sizes = (q.shape[-1], v.shape[-1])
    fits = max(sizes) <= CUDNN_HEAD_DIM or sizes == (192, 128)
    return q.dtype in HALF and fits and not any(size % 8 for size in sizes) and k.shape[-2] != 1 and (16 * dropout).is_integer()


def _trained(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _run_math(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: float | None, gqa: bool) -> Any:
    return aten._scaled_dot_product_attention_math(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=gqa)[0]


def _run_flash(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: float | None, gqa: bool) -> Any:
    size = q.shape[-1]
    q, k, v = (_padded(tensor) for tensor in (q, k, v))
    out = aten._scaled_dot_product_flash_attention(q, k, v, dropout, causal, False, scale=scale or 1 / math.sqrt(size))[0]
    return out[..., :size] if size % 8 else out


def _padded(tensor: Any) -> Any:
    """Heads in multiples of 8 elements, as the kernel wants them."""
    return torch.nn.functional.pad(tensor, (0, -tensor.shape[-1] % 8)) if tensor.shape[-1] % 8 else tensor


def _run_efficient(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: float | None, gqa: bool) -> Any:
    return aten._scaled_dot_product_efficient_attention(q, k, v, _bias(mask, q, k), _trained(q, k, v), dropout, causal, scale=scale)[0]


def _run_cudnn(q: Any, k: Any, v: Any, mask: Any, dropout: float, causal: bool, scale: float | None, gqa: bool) -> Any:
    return aten._scaled_dot_product_cudnn_attention(q, k, v, _bias(mask, q, k), _trained(q, k, v), dropout, causal, False, scale=scale)[0]


def _bias(mask: Any, q: Any, k: Any) -> Any:
    """A mask as the fused kernels take it: added to the scores, and spread over batch and heads without a copy."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        zero = torch.zeros((), dtype=q.dtype, device=q.device)
        mask = torch.where(mask, zero, torch.full((), -math.inf, dtype=q.dtype, device=q.device))
    return mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])


_RUN = {"math": _run_math, "flash": _run_flash, "efficient": _run_efficient, "cudnn": _run_cudnn}
