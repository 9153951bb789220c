"""Compiled code runs eagerly in a trace, and the answer says so."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

from everybyte.trace.birth import is_of_program

NOTE = "torch.compile is not followed: the program runs as eager code, which keeps and makes other tensors than compiled code does"


class Compiled:
    """Hears whether the program asks for compiled code; what libraries do for themselves is not its wish."""

    def __init__(self) -> None:
        self.asked = False

    @contextlib.contextmanager
    def met(self) -> Iterator[None]:
        """While entered, torch.compile and Module.compile leave things as they are."""
        compile_function, compile_module = torch.compile, torch.nn.Module.compile

        def leave(model: Any = None, **options: Any) -> Any:
            self.asked = self.asked or is_of_program(sys._getframe(1).f_code.co_filename)
            return leave if model is None else model  # without a model it is a decorator with options

        def leave_module(module: Any, *args: Any, **options: Any) -> None:
            self.asked = True

        torch.compile, torch.nn.Module.compile = leave, leave_module
        try:
            yield
        finally:
            torch.compile, torch.nn.Module.compile = compile_function, compile_module

    def notes(self) -> tuple[str, ...]:
        """What the answer says of it."""
        return (NOTE,) if self.asked else ()
