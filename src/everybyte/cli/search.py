"""Search in a catalogue by words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Row = TypeVar("Row")


def search(rows: Sequence[Row], words: Sequence[str], texts: Callable[[Row], Sequence[str]], find: Callable[[str], Row]) -> Sequence[Row]:
    """The rows whose texts hold all words, without regard to case and separators; where none does, what the catalogue knows by that name.

    Raises BadInput with the nearest names when nothing is found.
    """
    wanted = [_fold(word) for word in words]
    exact = [row for row in rows if len(wanted) == 1 and any(_fold(text) == wanted[0] for text in texts(row)[:1])]
    found = exact or [row for row in rows if all(any(word in _fold(text) for text in texts(row)) for word in wanted)]
    return found or [find(" ".join(words))]


def _fold(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())
