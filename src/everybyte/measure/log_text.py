"""Logs as lines: of any size, in any encoding, with colours, progress bars and what log collectors put in front."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

LONGEST_LINE = 8192
"""Characters of a line that are read; the rest of it is passed over, so that a line of a gigabyte costs no memory."""
CHUNK = 1 << 20
_NOT_TEXT = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]")
"""Escape sequences of terminals (colours, titles) and control characters."""


class Line(NamedTuple):
    """One line: its number from 1, and what a person sees of it."""

    number: int
    text: str


def lines_of(stream: BinaryIO) -> Iterator[Line]:
    """The lines of a byte stream, one at a time. What is not UTF-8 is replaced; of a progress bar its last state is read."""
    number = 1
    for raw in _raw_lines(stream):
        yield Line(number, clean(raw.decode("utf-8", errors="replace")))
        number += 1


def clean(text: str) -> str:
    """A line without colours, control characters and the earlier states of a progress bar."""
    text = text.rstrip("\r\n")
    if text.isprintable():  # most lines
        return text
    text = _NOT_TEXT.sub("", text)
    return text.rpartition("\r")[2] if "\r" in text else text


def _raw_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines as bytes, each cut at LONGEST_LINE. UTF-16, which Windows' shell writes, becomes UTF-8."""
    first = stream.read(CHUNK)
    wide = "utf-16" if first[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
    if wide:
        yield from ((first + stream.read()).decode(wide, errors="replace").encode()).split(b"\n")
        return
    rest, skipping = b"", False
    chunk = first
    while chunk:
        *whole, last = (rest + chunk).split(b"\n") if not skipping else chunk.split(b"\n")
        if skipping and whole:
            whole, skipping = whole[1:], False
        yield from (line[:LONGEST_LINE] for line in whole)
        if not skipping:
            if len(last) > LONGEST_LINE:
                yield last[:LONGEST_LINE]
                skipping, last = True, b""
            rest = last
        chunk = stream.read(CHUNK)
    if rest:
        yield rest[:LONGEST_LINE]
