"""Values of variables: text whose every piece knows its line, and marks for what only a run could tell.

A mark is a private character, a number and another private character inside the text. It passes through assignments, splitting and quoting
like any other text, and is turned back at the end into what the script says there (`$1`, `$(nproc)`).
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from everybyte.basics.record import Record

_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
LONGEST_VALUE = 1 << 18
"""Characters of one value; a script that doubles a text in a loop ends here."""


class Piece(NamedTuple):
    """A stretch of text and the line that it comes from."""

    text: str
    line: int


Text = tuple[Piece, ...]


def plain(text: Text) -> str:
    """The text without its lines."""
    return text[0].text if len(text) == 1 else "".join(piece.text for piece in text)


def first_line(text: Text, default: int) -> int:
    """The line of the first piece that is not blank."""
    return next((piece.line for piece in text if piece.text.strip()), text[0].line if text else default)


def without_marks(text: str) -> str:
    """The text without private characters, which a hostile file could hold."""
    return text.replace(_OPEN, "").replace(_CLOSE, "")


class Unknown(Record, frozen=True):
    """What only a run could tell."""

    written: str
    """As the script has it."""
    line: int
    why: Literal["unset", "argument", "output", "placeholder", "input"]


class Unknowns:
    """The marks of one script."""

    def __init__(self) -> None:
        self._known: list[Unknown] = []

    def mark(self, written: str, line: int, why: Literal["unset", "argument", "output", "placeholder", "input"]) -> str:
        """The mark of something unknown."""
        self._known.append(Unknown(written, line, why))
        return f"{_OPEN}{len(self._known) - 1}{_CLOSE}"

    def of(self, text: str) -> tuple[Unknown, ...]:
        """What is unknown of a text."""
        return tuple(self._known[int(number)] for number in _MARK.findall(text)) if _OPEN in text else ()

    def shown(self, text: str) -> str:
        """The text with what the script says in place of each mark."""
        while _OPEN in text:
            text = _MARK.sub(lambda match: self._known[int(match[1])].written, text)
        return text

    def as_empty(self, text: str) -> str:
        """The text as it is when unset variables and absent arguments are empty. What programs print keeps its mark."""
        if _OPEN not in text:
            return text
        empty = ("unset", "argument")
        return _MARK.sub(lambda match: "" if self._known[int(match[1])].why in empty else match.group(), text)


def is_marked(text: str) -> bool:
    """Whether something of the text is unknown."""
    return _OPEN in text


def is_all_marks(text: str) -> bool:
    """Whether nothing of the text is known."""
    return _OPEN in text and not _MARK.sub("", text)


class Variable:
    """A variable: a text, or an array (of numbered or named elements)."""

    __slots__ = ("array", "exported", "named", "text")

    def __init__(self, text: Text = (), *, exported: bool = False, array: dict[str, Text] | None = None, named: bool = False) -> None:
        self.text, self.exported, self.array, self.named = text, exported, array, named

    def copy(self) -> Variable:
        """One that changes by itself."""
        return Variable(self.text, exported=self.exported, array=dict(self.array) if self.array is not None else None, named=self.named)

    def elements(self) -> list[Text]:
        """All elements, in order; of a plain variable its text."""
        if self.array is None:
            return [self.text]
        return [self.array[key] for key in self.keys()]

    def keys(self) -> list[str]:
        """Keys of the elements, numbers in their order."""
        if self.array is None:
            return ["0"]
        return list(self.array) if self.named else sorted(self.array, key=_as_number)

    def get(self, key: str) -> Text | None:
        """One element; a plain variable is its own element 0."""
        if self.array is None:
            return self.text if key == "0" else None
        if not self.named and key.startswith("-") and key[1:].isdigit():
            keys = self.keys()
            return self.array[keys[int(key)]] if int(key[1:]) <= len(keys) else None
        return self.array.get(key)


def _as_number(key: str) -> int:
    """A key of an array; what is no number (an index nobody knows) counts as 0."""
    return int(key) if key.lstrip("-").isdigit() else 0
