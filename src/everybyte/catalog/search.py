"""Search in a catalogue by words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Row = TypeVar("Row")


def matches(rows: Sequence[Row], words: Sequence[str], texts: Callable[[Row], Sequence[str]]) -> Sequence[Row]:
    """The rows whose texts hold all words, without regard to case and separators; the one whose first text is the only word, if there is one."""
    wanted = [_fold(word) for word in words]
    exact = [row for row in rows if len(wanted) == 1 and any(_fold(text) == wanted[0] for text in texts(row)[:1])]
    return exact or [row for row in rows if all(any(word in _fold(text) for text in texts(row)) for word in wanted)]


def _fold(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())
