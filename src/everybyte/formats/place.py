"""Where something was written."""

from __future__ import annotations

from typing import Any, NamedTuple

COMMAND = "command"
"""The source of a command that was handed over as text: its places are flags."""


class Place(NamedTuple):
    """A file with a line (from 1), a flag, or both. As text: `tune.yaml:3`, `--bf16`, `--bf16 (run.sh:7)`."""

    source: str
    line: int | None = None
    flag: str = ""

    def __str__(self) -> str:
        if self.flag and self.source == COMMAND:
            return self.flag
        file = f"{self.source}:{self.line}" if self.line else self.source
        return f"{self.flag} ({file})" if self.flag else file


class Given(NamedTuple):
    """A value that somebody wrote, and where."""

    value: Any
    place: Place
