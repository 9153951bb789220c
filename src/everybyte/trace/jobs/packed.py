"""A packed base: bitsandbytes' own layers over fake weights. Its code runs as it is, but for two things: its parameters are types of tensor that cannot be
fake, and some of its operations allocate inside, where no recorder sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from everybyte.basics.errors import Unsupported
from everybyte.layers.recording.setup import Packed
from everybyte.trace.hooks.patches import replaced

FOUR_BIT = ("nf4", "fp4")
"""Formats of Linear4bit; int8 is that of Linear8bitLt."""
OUTLIERS_FROM = 6.0
"""transformers' BitsAndBytesConfig.llm_int8_threshold: columns of the input with a larger number are multiplied in 16 bit."""
SCALES = 256
"""Scales that share one fp32 scale under double quantisation (functional.py quantize_4bit)."""


def pack(model: Any, packed: Packed, compute: torch.dtype, device: str) -> None:
    """bitsandbytes' layers in the place of the linear ones that `packed` covers. Their weights go to the device and are packed there, one after the other, as
    transformers loads them (integrations/bitsandbytes.py replace_with_bnb_linear). Raises Unsupported where bitsandbytes is not installed."""
    try:
        from bitsandbytes import nn as layers
        from transformers.pytorch_utils import Conv1D
    except ImportError:
        raise Unsupported("train.quantization", "a trace of packed weights runs bitsandbytes' code: pip install bitsandbytes") from None
    _show_what_operations_allocate()
    four = packed.format in FOUR_BIT
    for place, linear in list(model.named_modules()):
        if isinstance(linear, (nn.Linear, Conv1D)) and packed.covers(place):
            weight = (linear.weight.T if isinstance(linear, Conv1D) else linear.weight).detach().to(device)
            layer = _four_bit(layers, weight, packed, compute) if four else _eight_bit(layers, weight)
            layer.bias = linear.bias
            model.set_submodule(place, layer.requires_grad_(False))
    model.is_loaded_in_4bit, model.is_loaded_in_8bit = four, not four  # by which peft knows its own layers


def is_packed(module: nn.Module) -> bool:
    """Whether a module is a layer with a packed weight."""
    return hasattr(module, "weight") and not module.weight.is_floating_point()


def _four_bit(layers: Any, weight: torch.Tensor, packed: Packed, compute: torch.dtype) -> nn.Module:
    """Linear4bit over a weight (out, in)."""
    from bitsandbytes.functional import quantize_4bit

    numbers, state = quantize_4bit(weight, blocksize=packed.group_size, compress_statistics=packed.double, quant_type=packed.format)
    with replaced(layers.modules, Params4bit=lambda _, **settings: _parameter(layers.Params4bit, numbers, quant_state=state, **settings)):
        layer: nn.Module = layers.Linear4bit(
            weight.shape[1],
            weight.shape[0],
            bias=False,
            compute_dtype=compute,
            compress_statistics=packed.double,
            quant_type=packed.format,
            device="meta",
        )
    layer.quant_state = state
    second = {"offset": state.offset, "absmax2": state.state2.absmax, "code2": state.state2.code} if state.nested else {}
    _hold(layer, {"absmax": state.absmax, "code": state.code, **second})
    return layer


def _eight_bit(layers: Any, weight: torch.Tensor) -> nn.Module:
    """Linear8bitLt over a weight (out, in)."""
    from bitsandbytes.functional import int8_vectorwise_quant

    numbers, scales, _ = int8_vectorwise_quant(weight.to(torch.float16))
    with replaced(layers.modules, Int8Params=lambda _, **settings: _parameter(layers.Int8Params, numbers, CB=numbers, SCB=scales, **settings)):
        layer: nn.Module = layers.Linear8bitLt(
            weight.shape[1],
            weight.shape[0],
            bias=False,
            has_fp16_weights=False,
            threshold=OUTLIERS_FROM,
            device="meta",
        )
    _hold(layer, {"SCB": scales})
    return layer


def _parameter(kind: Any, data: torch.Tensor, requires_grad: bool = False, **settings: Any) -> nn.Parameter:
    """A parameter of a class of bitsandbytes with its settings; that class makes tensors of its own, here it is given to a fake one."""
    made = nn.Parameter(data, requires_grad=False)
    made.__class__ = _fake(kind)
    vars(made).update(settings)
    return made


@cache
def _fake(kind: Any) -> Any:
    """The class for fake tensors: libraries ask for it, and for its name. What is packed stays where it is, and peft's copy of it is never written to
    (tuners/lora/dora.py update_layer)."""

    def itself(self: Any, *_: Any, **__: Any) -> Any:
        return self

    return type(kind.__name__, (FakeTensor, kind), {"to": itself, "__deepcopy__": itself})


def _hold(layer: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """What unpacks a weight hangs on no module in bitsandbytes; as buffers the tensors belong to their layer."""
    for name, tensor in tensors.items():
        layer.register_buffer(name, tensor, persistent=False)


def _show_what_operations_allocate() -> None:
    """bitsandbytes' operations on CUDA that are made of others, as those others."""
    ways: dict[str, Callable[..., Any]] = {"gemm_4bit": _product_4bit, "int8_vectorwise_quant": _rows_in_8bit, "int8_mixed_scaled_mm": _product_8bit}
    for name, way in ways.items():
        operation: Any = partial(way)
        operation.default = way  # it is called by either name
        setattr(torch.ops.bitsandbytes, name, operation)


def _product_4bit(
    x: torch.Tensor,
    numbers: torch.Tensor,
    shape: Sequence[int],
    absmax: torch.Tensor,
    blocksize: int,
    kind: str,
    bias: torch.Tensor | None = None,
    absmax_8bit: torch.Tensor | None = None,
    absmax_code: torch.Tensor | None = None,
    absmax_offset: torch.Tensor | None = None,
) -> torch.Tensor:
    """backends/cuda/ops.py _dequant_linear_fallback, the way of every release: a dense copy of the weight in the type of x. Since 0.50 up to 1,536 rows go
    without one where a table of measured GPUs says that it is faster."""
    unpacked = absmax
    if absmax_8bit is not None:
        unpacked = torch.ops.bitsandbytes.dequantize_blockwise(absmax_8bit, absmax, absmax_code, SCALES, torch.float32)
        absmax = unpacked + absmax_offset
    dense = torch.ops.bitsandbytes.dequantize_4bit(numbers, absmax, blocksize, kind, shape, x.dtype)
    return nn.functional.linear(x, dense, bias)


def _rows_in_8bit(x: torch.Tensor, threshold: float = 0.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """backends/cuda/ops.py int8_vectorwise_quant: one byte a number, an fp32 scale a row, a mask of outliers. That there are none is taken for granted: which
    columns have some nobody knows without their values."""
    scales = torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device)
    numbers = torch.empty_like(x, dtype=torch.int8)
    if not threshold:
        return numbers, scales, None
    outliers = x.abs() >= threshold
    outliers.any()
    return numbers, scales, torch.empty(0, dtype=torch.int64, device=x.device)


def _product_8bit(
    x: torch.Tensor,
    numbers: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    weight_scales: torch.Tensor,
    outliers: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """backends/default/ops.py int8_mixed_scaled_mm and int8_scaled_mm, backends/cuda/ops.py int8_mm_dequant: sums in int32, then fp16, then the type of x."""
    of_outliers = torch.empty(0, dtype=x.dtype, device=x.device)
    sums = torch.ops.bitsandbytes.int8_linear_matmul(numbers, weight)
    half = torch.ops.bitsandbytes.int8_mm_dequant(
        sums, scales, weight_scales, torch.float16, bias if bias is not None and bias.dtype == torch.float16 else None
    )
    if bias is not None and bias.dtype != torch.float16:
        half.add_(bias)
    return half.to(x.dtype), of_outliers
