"""How a command ends, and where its output goes."""

from __future__ import annotations

from typing import NamedTuple

from everybyte.formats.shell.state import WrittenFile
from everybyte.formats.shell.values import Piece, Text


class Status(NamedTuple):
    """How a command ends: 0 is success, None is not known. `assumed` names what was taken as unset on the way."""

    code: int | None
    assumed: tuple[str, ...] = ()


SUCCESS = Status(0)


class Leave(Exception):
    """`exit`, `return`, `break` and `continue` on their way out."""

    def __init__(self, kind: str, levels: int = 1) -> None:
        super().__init__(kind)
        self.kind, self.levels = kind, levels


class Sink:
    """Where output goes."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.lost = False
        """A program whose output nobody knows wrote here."""

    def text(self) -> Text | None:
        """All that was written; None if some of it is not known."""
        return None if self.lost else tuple(self.pieces)


class Started(NamedTuple):
    """A program that the script would start."""

    words: tuple[Text, ...]
    line: int
    environment: dict[str, Text]
    plain_variables: dict[str, Text]
    """Variables that are set and not exported: the program does not see them."""
    files: dict[str, WrittenFile]
    alternative: bool
    """It stands in a branch that is not taken by the script's own defaults."""


class Note(NamedTuple):
    """Something odd, or something assumed."""

    kind: str
    """`assumed`, `broken`, `passed` or `limit`."""
    line: int
    text: str


class Spent(Exception):
    """The steps are used up."""
