"""Where text for people goes: styled on a terminal, plain otherwise."""

from __future__ import annotations

import os
import sys
from typing import IO, Any

from rich.console import Console
from rich.text import Text

from everybyte.report.language import said, said_in_runs

PLAIN_WIDTH = 100
"""Columns when nobody watches: a file or a pipe."""


class PipeConsole(Console):
    """A console that leaves it to the command what to do when the reader of a pipe goes away."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich's, in the language that people are spoken to in."""
        super().print(*(_spoken(thing) for thing in objects), **options)

    def on_broken_pipe(self) -> None:
        """Raise instead of ending the process with exit code 1, as rich does."""
        raise BrokenPipeError


def _spoken(thing: Any) -> Any:
    return said(thing) if isinstance(thing, str) else said_in_runs(thing) if isinstance(thing, Text) else thing


def open_console(file: IO[str] | None = None) -> Console:
    """A console on `file` (standard output) that sends escape codes only to a terminal, and none under NO_COLOR or TERM=dumb."""
    target = file or sys.stdout
    on_terminal = target.isatty()
    styled = on_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return PipeConsole(
        file=target,
        force_terminal=styled,
        no_color=not styled,
        color_system="auto" if styled else None,
        width=None if on_terminal else _plain_width(),
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
        legacy_windows=False,
    )


def _plain_width() -> int:
    asked = os.environ.get("COLUMNS", "")
    return max(40, int(asked)) if asked.isdigit() else PLAIN_WIDTH
