"""A sign of life on standard error when something takes over a second. Nothing is written where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from everybyte.report.language import said

if TYPE_CHECKING:
    import threading

PATIENCE_S = 1.0
PERIOD_S = 0.2
WIDTH = 20
"""Cells of the bar."""


class Progress:
    """`with Progress("answering", total=400) as progress: ... progress.advance()`. Who learns of the total later sets `total` and `done`."""

    def __init__(self, what: str, total: int = 0, unit: str = "") -> None:
        self.what, self.total, self.unit, self.done = what, total, unit, 0
        self.words = ""
        """What it is at now, where it says so."""
        self._end: threading.Event | None = None
        self._thread: threading.Thread | None = None
        self._lock: threading.Lock | None = None
        self._drawn = 0
        """Characters of the line that stands on the terminal now."""

    def advance(self) -> None:
        """One more of the total is done."""
        self.done += 1

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            import threading  # not paid for by programs, which read standard error through a pipe

            self._end, self._lock = threading.Event(), threading.Lock()
            self._thread = threading.Thread(target=self._draw, args=(self._end, self._lock), daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        if self._end is not None and self._thread is not None:
            self._end.set()
            self._thread.join()

    @contextmanager
    def away(self) -> Iterator[None]:
        """The line is off the terminal while something else is printed there."""
        if self._lock is None:
            yield
            return
        with self._lock:
            self._erase()
            yield

    def _draw(self, end: threading.Event, lock: threading.Lock) -> None:
        import time

        start = time.monotonic()
        if end.wait(PATIENCE_S):
            return
        while True:
            with lock:
                line = f"{self._line()}, {time.monotonic() - start:.0f} s "
                sys.stderr.write(f"\r{line:<{self._drawn}}")
                sys.stderr.flush()
                self._drawn = max(self._drawn, len(line))
            if end.wait(PERIOD_S):
                break
        with lock:
            self._erase()

    def _erase(self) -> None:
        if self._drawn:
            sys.stderr.write("\r" + " " * self._drawn + "\r")
            sys.stderr.flush()
            self._drawn = 0

    def _line(self) -> str:
        """What it does, a bar, the share that is done, and what it is at."""
        line = said(self.what)
        if self.total:
            full = WIDTH * self.done // self.total
            line += f" {'█' * full}{'░' * (WIDTH - full)} {self.done:,} of {self.total:,}" + (f" {self.unit}" if self.unit else "")
        return f"{line}, {said(self.words)}" if self.words else line
