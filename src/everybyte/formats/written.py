"""What an export hands over: files or commands, and what of the job they cannot say."""

from __future__ import annotations

from typing import NamedTuple


class Written(NamedTuple):
    """One file, or a script that holds the command."""

    name: str
    text: str


class Export(NamedTuple):
    """A job in the words of a framework or engine."""

    files: tuple[Written, ...]
    """The first is what a person starts with."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Job keys that the target has no word for, with the reason."""
