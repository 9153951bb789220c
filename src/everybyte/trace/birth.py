"""One storage in the life of a program: when it was born, by what, and when it was freed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

LIBRARIES = ("/site-packages/", "/dist-packages/", "<frozen", "<string>", "/everybyte/trace/", "/lib/python")
"""Where a file lies that is no part of the program."""
DEEPEST = 80
"""Frames that are looked at for the program's line."""


@dataclass(slots=True)
class Birth:
    """A storage. `born` and `died` are positions in the events; what still lives at the end has no `died`."""

    id: int
    nbytes: int
    operation: str
    module: str
    phase: str
    dtype: str
    shape: tuple[int, ...]
    stream: int
    line: str
    """`file:line` of the program that was running; empty where only libraries were."""
    born: int
    category: str = ""
    died: int | None = None
    died_in: str = ""
    given: str = ""
    """The module that is given it as hidden states by the one before."""
    again: bool = False
    """Made by a forward pass that backward runs again."""
    alive: Any = None


@cache
def is_of_program(file: str) -> bool:
    """Whether a file belongs to the program that is traced, and to no library."""
    return not any(part in file for part in LIBRARIES)


def line_of_program() -> str:
    """The innermost line on the stack that belongs to no library."""
    frame: Any = sys._getframe(2)
    for _ in range(DEEPEST):
        if frame is None:
            return ""
        if is_of_program(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
