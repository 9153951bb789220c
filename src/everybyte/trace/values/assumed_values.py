"""What is known of fake tensors where a program asks: numbers that it has put on the GPU itself, that those of a healthy run are finite, and that what it
asserts of values holds."""

from __future__ import annotations

import contextlib
import functools
import linecache
import operator
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from everybyte.trace.hooks.patches import replaced

Truth = Callable[..., bool | None]
Number = int | float | bool
_known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_numbers: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def is_unknown(tensor: Any) -> bool:
    """Whether a tensor is fake and nothing is known of its values."""
    return isinstance(tensor, FakeTensor) and tensor.constant is None


def truth_of(tensor: Any) -> bool | None:
    """The truth of all elements of a tensor, where a healthy run knows it."""
    return _known.get(tensor) if isinstance(tensor, torch.Tensor) else None


def number_of(tensor: Any) -> Number | None:
    """The number that a program has put on the GPU, as in `torch.tensor(5, device="cuda")`, as long as nothing has written over it."""
    return _numbers.get(tensor) if isinstance(tensor, torch.Tensor) else None


def follow_numbers(func: Any, args: Any, out: Any) -> None:
    """An operation has run: it may have copied a number to the GPU, or written over one."""
    if func is torch.ops.aten._to_copy.default:
        source = args[0].constant if isinstance(args[0], FakeTensor) else args[0]
        if source is not None and source.numel() == 1 and is_unknown(out):
            with _disable_current_modes():
                _numbers[out] = source.item()
    elif len(_numbers) and getattr(getattr(func, "_schema", None), "is_mutable", True):
        for leaf in tree_leaves(args):
            if isinstance(leaf, torch.Tensor):
                _numbers.pop(leaf, None)


@contextlib.contextmanager
def healthy() -> Iterator[None]:
    """While entered, fake tensors answer so."""
    before = torch.Tensor.__bool__

    def asked(self: torch.Tensor) -> bool:
        if is_unknown(self):
            number = number_of(self)
            truth = bool(number) if number is not None else True if _is_asserted(sys._getframe(1)) else truth_of(self)
            if truth is not None:
                return truth
        return bool(before(self))

    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(torch.Tensor, __bool__=asked))
        for name, truth in ANSWERS.items():
            for owner in (torch.Tensor,) if name.startswith("__") else (torch, torch.Tensor):
                if hasattr(owner, name):
                    stack.enter_context(replaced(owner, **{name: _told(getattr(owner, name), truth)}))
        yield


def _told(function: Callable[..., Any], truth: Truth) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        known = truth(*args)
        if is_unknown(out) and known is not None:
            _known[out] = known
        return out

    return called


def _either(one: Any, other: Any) -> bool | None:
    truths = truth_of(one), truth_of(other)
    return None if None in truths else any(truths)


def _opposite(tensor: Any) -> bool | None:
    truth = truth_of(tensor)
    return None if truth is None else not truth


def _same(tensor: Any, *_: Any) -> bool | None:
    return truth_of(tensor)


def _compared(compare: Callable[[Any, Any], bool]) -> Truth:
    def truth(*sides: Any) -> bool | None:
        numbers = [side if type(side) in (int, float, bool) else number_of(side) for side in sides]
        return None if None in numbers else compare(*numbers)

    return truth


ANSWERS: dict[str, Truth] = {
    "isnan": lambda _: False,
    "isinf": lambda _: False,
    "isfinite": lambda _: True,
    "any": _same,
    "all": _same,
    "logical_not": _opposite,
    "__invert__": _opposite,
    "logical_or": _either,
    "__or__": _either,
    **{f"__{name}__": _compared(getattr(operator, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}
"""Functions of torch and of tensors, and what is known of their results."""


def _is_asserted(frame: FrameType) -> bool:
    """Whether the statement that runs there is an assertion."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("assert ")
