"""TOML with the line of each key, as far as keys stand at the beginning of lines."""

from __future__ import annotations

import re

from everybyte.formats.documents.document import Document
from everybyte.formats.source import Source
from everybyte.job import toml_text

_TABLE = re.compile(r"\s*\[{1,2}\s*([^\]]+?)\s*\]{1,2}")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")


def documents(source: Source) -> list[Document]:
    """The value of a TOML text. Raises BadInput; the parser's message names line and column."""
    return [Document(toml_text.load(source.text, source.path), _lines(source.text), source)]


def _lines(text: str) -> dict[str, int]:
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.split("\n"), 1):
        if found := _TABLE.match(line):
            table = _path(found[1])
            lines.setdefault(table, number)
        elif found := _KEY.match(line):
            key = _path(found[1])
            lines.setdefault(f"{table}.{key}" if table else key, number)
    return lines


def _path(written: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in written.split("."))
