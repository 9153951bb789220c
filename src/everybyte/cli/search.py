"""What `models` and `gpus` do with the words that they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from everybyte.catalog.search import matches

Row = TypeVar("Row")


def search(rows: Sequence[Row], words: Sequence[str], texts: Callable[[Row], Sequence[str]], find: Callable[[str], Row]) -> Sequence[Row]:
    """The rows that match all words; where none does, what the catalogue knows by that name. Raises BadInput with the nearest names."""
    return matches(rows, words, texts) or [find(" ".join(words))]
