"""Numbers that a program reads from the fake device: to print, to log, to divide by. They have no values, so that a stand-in is given for them.

It is finite, as a healthy run's losses and norms are: guards against infinities let it pass. It refuses to be compared and to be a size or an index: which
way a program takes must not hang on a number that nobody knows."""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from everybyte.trace.birth import line_of_program
from everybyte.trace.hooks.patches import replaced
from everybyte.trace.values.assumed_values import is_unknown, number_of, truth_of

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


KNOWN: dict[str, Callable[..., Any]] = {"item": lambda number: number, "tolist": lambda number: number, "__float__": float, "__format__": format}
"""What the methods give of a number that is known."""


class Read:
    """Gives the stand-ins, and counts the numbers that were read, by the program's line."""

    def __init__(self) -> None:
        self.lines: Counter[str] = Counter()

    def notes(self) -> tuple[str, ...]:
        """What the trace took for granted of them."""
        return tuple(f"{line or 'a library'} read a number from the device, which has no value in a trace: {STAND_IN} stood for it" for line in self.lines)

    @contextlib.contextmanager
    def met(self) -> Iterator[None]:
        """While entered, `.item()`, `.tolist()`, `float()` and a format of a fake tensor give a stand-in. The largest or the smallest of numbers is unknown
        where one of them is: so training loops keep their best loss, and optimizers clamp. A GradScaler steps, as it does unless a gradient overflows."""
        answers = {"item": _item, "tolist": lambda tensor: _nested(tuple(tensor.shape)), "__float__": lambda _: STAND_IN, "__format__": lambda _: UNKNOWN}
        with contextlib.ExitStack() as stack:
            for name, answer in answers.items():
                stack.enter_context(replaced(torch.Tensor, **{name: self._answering(name, answer)}))
            stack.enter_context(replaced(torch.amp.GradScaler, _maybe_opt_step=_step))
            stack.enter_context(replaced(builtins, max=_choosing(max), min=_choosing(min)))
            yield

    def _answering(self, name: str, answer: Callable[[Any], Any]) -> Callable[..., Any]:
        before = getattr(torch.Tensor, name)

        def asked(tensor: Any, *form: str) -> Any:
            if not is_unknown(tensor) or (name != "tolist" and tensor.numel() != 1):
                return before(tensor, *form)
            number = number_of(tensor)
            if number is not None:
                return KNOWN[name](number, *form)
            self.lines[line_of_program()] += 1
            return answer(tensor)

        return asked


def _step(_: Any, optimizer: Any, __: Any, *args: Any, **kwargs: Any) -> Any:
    """torch/amp/grad_scaler.py (_maybe_opt_step) where no gradient overflowed."""
    return optimizer.step(*args, **kwargs)


def _choosing(choose: Callable[..., Any]) -> Callable[..., Any]:
    def chosen(*values: Any, **how: Any) -> Any:
        if len(values) == 1:
            values = (tuple(values[0]),)  # it may be read only once
        for value in values[0] if len(values) == 1 else values:
            if isinstance(value, Unknown) or (is_unknown(value) and value.numel() == 1):
                return value
        return choose(*values, **how)

    return chosen


def _item(tensor: torch.Tensor) -> Any:
    truth = truth_of(tensor)
    return Unknown(STAND_IN) if truth is None else truth


def _nested(shape: tuple[int, ...]) -> Any:
    """Stand-ins in lists of lists of a shape."""
    return [_nested(shape[1:]) for _ in range(shape[0])] if shape else Unknown(STAND_IN)
