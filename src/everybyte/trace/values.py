"""Numbers that a program reads from the fake device: to print, to log, to divide by. They have no values, so that a stand-in is given for them.

It is finite, as a healthy run's losses and norms are: guards against infinities let it pass, and what the program asserts holds. It refuses to be compared
and to be a size or an index: which way a program takes must not hang on a number that nobody knows."""

from __future__ import annotations

import builtins
import contextlib
import linecache
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor

from everybyte.trace.birth import line_of_program
from everybyte.trace.patches import replaced

STAND_IN = 1.0
UNKNOWN = "unknown"
OWN_NUMBERS = "torch.optim.asgd"
"""Compares a number of its own, which is 1 as the stand-in is until averaging begins, after a million steps (asgd.py: t0)."""


class Unknown(float):
    """A float whose value nobody knows. Sums and products of it are as unknown; it prints as `unknown`."""

    def _of(self, *_: Any) -> Unknown:
        return Unknown(STAND_IN)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _of
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __neg__ = __abs__ = __pos__ = _of

    def _decides(self, *_: Any) -> bool:
        raise DataDependentOutputException(torch.ops.aten._local_scalar_dense.default)

    def __ne__(self, other: object) -> bool:
        return other != STAND_IN if sys._getframe(1).f_globals.get("__name__") == OWN_NUMBERS else self._decides()

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = _decides
    __bool__ = __int__ = __index__ = __trunc__ = __floor__ = __ceil__ = _decides
    __hash__ = float.__hash__

    def __round__(self, digits: Any = None) -> Any:
        return self if digits is not None else self._decides()

    def __repr__(self) -> str:
        return UNKNOWN

    __str__ = __repr__

    def __format__(self, form: str) -> str:
        return UNKNOWN


class Read:
    """Counts the numbers that were read, by the program's line."""

    def __init__(self) -> None:
        self.lines: Counter[str] = Counter()

    def notes(self) -> tuple[str, ...]:
        """What the trace took for granted of them."""
        return tuple(f"{line or 'a library'} read a number from the device, which has no value in a trace: {STAND_IN} stood for it" for line in self.lines)


@contextlib.contextmanager
def stand_ins(read: Read) -> Iterator[None]:
    """While entered, `.item()`, `.tolist()`, `float()` and a format of a fake tensor give a stand-in, and one that is asserted is true. The largest or the
    smallest of numbers is unknown where one of them is: so training loops keep their best loss, and optimizers clamp."""
    kept = {name: getattr(torch.Tensor, name) for name in ("item", "tolist", "__float__", "__format__", "__bool__")}

    def answering(name: str, answer: Callable[[Any], Any]) -> Callable[..., Any]:
        def asked(self: Any, *form: str) -> Any:
            if not _is_unknown(self) or (name != "tolist" and self.numel() != 1):
                return kept[name](self, *form)
            read.lines[line_of_program()] += 1
            return answer(self)

        return asked

    torch.Tensor.item = answering("item", lambda self: Unknown(STAND_IN))
    torch.Tensor.tolist = answering("tolist", lambda self: _nested(tuple(self.shape)))
    torch.Tensor.__float__ = answering("__float__", lambda self: STAND_IN)
    torch.Tensor.__format__ = answering("__format__", lambda self: UNKNOWN)
    torch.Tensor.__bool__ = lambda self: (_is_unknown(self) and _is_asserted(sys._getframe(1))) or kept["__bool__"](self)
    maybe_step = torch.amp.GradScaler._maybe_opt_step
    # torch/amp/grad_scaler.py steps unless a gradient overflowed: a healthy step
    torch.amp.GradScaler._maybe_opt_step = lambda self, optimizer, state, *args, **kwargs: optimizer.step(*args, **kwargs)
    try:
        with replaced(builtins, max=_choosing(max), min=_choosing(min)):
            yield
    finally:
        torch.amp.GradScaler._maybe_opt_step = maybe_step
        for name, function in kept.items():
            setattr(torch.Tensor, name, function)


def _choosing(choose: Callable[..., Any]) -> Callable[..., Any]:
    def chosen(*values: Any, **how: Any) -> Any:
        if len(values) == 1:
            values = (tuple(values[0]),)  # it may be read only once
        for value in values[0] if len(values) == 1 else values:
            if isinstance(value, Unknown) or (_is_unknown(value) and value.numel() == 1):
                return value
        return choose(*values, **how)

    return chosen


def _is_unknown(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.constant is None


def _is_asserted(frame: FrameType) -> bool:
    """Whether the statement that runs there is an assertion."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("assert ")


def _nested(shape: tuple[int, ...]) -> Any:
    """Stand-ins in lists of lists of a shape."""
    return [_nested(shape[1:]) for _ in range(shape[0])] if shape else Unknown(STAND_IN)
