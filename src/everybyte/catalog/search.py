"""Search in a catalogue by words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

Row = TypeVar("Row")


def matches(rows: Sequence[Row], words: Sequence[str], texts: Callable[[Row], Sequence[str]]) -> Sequence[Row]:
    """The rows whose texts hold all words, without regard to case and separators; the one whose first text is the only word, if there is one.

    Rows whose name has the words as whole parts stand first (`32b` before `235b`), then numbers go up: 0.6B, 4B, 32B.
    """
    wanted = [_fold(word) for word in words]
    exact = [row for row in rows if len(wanted) == 1 and any(_fold(text) == wanted[0] for text in texts(row)[:1])]
    if exact or not wanted:
        return exact or rows
    found = [row for row in rows if all(any(word in _fold(text) for text in texts(row)) for word in wanted)]
    return sorted(found, key=lambda row: _rank(texts(row)[0], wanted))


def _rank(name: str, wanted: Sequence[str]) -> tuple[int, int, list[tuple[bool, float, str]]]:
    """How many words are no whole part of the name, how many parts it has, then the name with its numbers as numbers."""
    parts = {_fold(part) for part in re.split(r"[/_ -]", name)}
    pieces = re.findall(r"\d+(?:\.\d+)?|[^\d]+", name.casefold())
    return sum(word not in parts for word in wanted), len(parts), [(piece[0].isdigit(), float(piece) if piece[0].isdigit() else 0.0, piece) for piece in pieces]


def _fold(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())
