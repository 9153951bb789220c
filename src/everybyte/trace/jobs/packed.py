"""Packs the linear layers of a model as bitsandbytes does when transformers loads it in 4 bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from everybyte.basics.errors import MissingExtra
from everybyte.layers.setup import Packed


def pack(model: nn.Module, packed: Packed, compute: torch.dtype, *, prepared: bool) -> nn.Module:
    """The model with Linear4bit layers; `prepared`: peft.prepare_model_for_kbit_training has run, which makes what is left fp32."""
    try:
        import bitsandbytes as bnb
    except ImportError:
        raise MissingExtra("tracing a packed base", "trace") from None
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and packed.covers(path):
            parent, _, leaf = path.rpartition(".")
            setattr(model.get_submodule(parent), leaf, _packed(bnb, module, packed, compute))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if prepared and parameter.dtype in (torch.float16, torch.bfloat16):
            parameter.data = parameter.data.to(torch.float32)
    return model


def _packed(bnb: Any, module: nn.Linear, packed: Packed, compute: torch.dtype) -> nn.Module:
    """A Linear4bit whose weight is already packed: bitsandbytes quantises when a weight comes to the device."""
    weight = module.weight
    layer = bnb.nn.Linear4bit(
        module.in_features, module.out_features, bias=False, compute_dtype=compute, compress_statistics=packed.double, quant_type=packed.format, device="meta",
    )  # fmt: skip
    numbers, state = bnb.functional.quantize_4bit(
        weight.data, blocksize=packed.group_size, compress_statistics=packed.double, quant_type=packed.format,
    )  # fmt: skip
    layer.weight = bnb.nn.Params4bit(
        numbers, requires_grad=False, quant_state=state, blocksize=packed.group_size, compress_statistics=packed.double, quant_type=packed.format,
        bnb_quantized=True, module=layer,
    )  # fmt: skip
    layer.quant_state = state
    layer.bias = module.bias
    return layer
