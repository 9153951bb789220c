"""JSON with the line of each key. Comments (`//`, `#`) of the JSON-like files of gpt-neox are left to the YAML reader."""

from __future__ import annotations

import re
from typing import Any

from everybyte.formats.documents.document import Document
from everybyte.formats.source import Source
from everybyte.job import json_text

_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def documents(source: Source) -> list[Document]:
    """The value of a JSON text. Raises BadInput with `path:line:column`."""
    return [Document(json_text.load(source.text, source.path), _lines(source.text), source)]


class _Level:
    """An open object or list while its text is walked."""

    def __init__(self, path: str, *, is_list: bool) -> None:
        self.path, self.is_list, self.index, self.key = path, is_list, 0, ""
        self.wants_key = not is_list

    @property
    def here(self) -> str:
        """The path of the value that comes next."""
        if self.is_list:
            return f"{self.path}[{self.index}]"
        return f"{self.path}.{self.key}" if self.path else self.key


def _lines(text: str) -> dict[str, int]:
    """Path -> line of a text that is valid JSON."""
    lines: dict[str, int] = {}
    levels: list[_Level] = []
    line, last = 1, 0
    for match in _PIECE.finditer(text):
        line += text.count("\n", last, match.start())
        last = match.start()
        _step(match.group(), line, levels, lines)
    return lines


def _step(piece: str, line: int, levels: list[_Level], lines: dict[str, int]) -> None:
    top = levels[-1] if levels else None
    if piece in "{[":
        path = top.here if top else ""
        levels.append(_Level(path, is_list=piece == "["))
        if piece == "[":
            lines.setdefault(f"{path}[0]", line)
    elif piece in "}]":
        levels.pop()
    elif piece == "," and top:
        top.index += 1
        top.wants_key = not top.is_list
        if top.is_list:
            lines[top.here] = line
    elif piece[0] == '"' and top and top.wants_key:
        top.key, top.wants_key = _text(piece), False
        lines[top.here] = line


def _text(piece: str) -> str:
    value: Any = json_text.load(piece, "") if "\\" in piece else piece[1:-1]
    return str(value)
