"""Small tensors on the CPU that a program computes with as with numbers: they stay real, so that it can read them.

Drop-path rates (`torch.linspace(0, 0.1, 12).tolist()`), schedules, the order of samples, token ids of a real data set: a program asks for their values, and on
fake tensors there are none. What a network is made of (`empty`, `randn`, `zeros`) is fake, wherever it lies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
MADE_OF_NUMBERS = frozenset(
    {
        aten.linspace.default,
        aten.logspace.default,
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
        aten.scalar_tensor.default,
        aten.randperm.default,
        aten.randperm.generator,
        aten.randint.default,
        aten.randint.low,
        aten.randint.generator,
        aten.randint.low_generator,
    }
)
MOST_ELEMENTS = 2**16
"""Larger tensors are data, not numbers."""


def stays_real(func: Any, args: Any, kwargs: Any, *, makes: bool = True) -> bool:
    """Whether an operation reads nothing but real tensors on the CPU, or, if it `makes` numbers there, nothing at all."""
    if args and isinstance(args[0], FakeTensor):
        return False
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != "cpu":
        return False
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if not tensors:
        return makes and (func in MADE_OF_NUMBERS or _is_one_number(func, args, kwargs))
    return all(not isinstance(one, FakeTensor) and one.device.type == "cpu" and one.numel() <= MOST_ELEMENTS for one in tensors)


def _is_one_number(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a single whole number is made, as samplers of data do for their seeds; networks have single numbers too, floating ones."""
    return func is aten.empty.memory_format and not args[0] and kwargs.get("dtype") is torch.int64
