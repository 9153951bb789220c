"""What a task gives back, and what a request may still lack."""

from __future__ import annotations

from typing import NamedTuple

from everybyte.basics.errors import BadInput

JSON, HTML = "application/json", "text/html; charset=utf-8"


class Reply(NamedTuple):
    """Status, body and media type of an answer."""

    status: int
    body: bytes
    media: str = JSON


class MoreNeeded(BadInput):
    """The slice of a file ends inside its header: `needs` first bytes of it are needed."""

    def __init__(self, path: str, message: str, needs: int) -> None:
        super().__init__(path, message)
        self.needs = needs
