"""The plain part of YAML that most job files keep to, read without PyYAML, whose import takes longer than a start of Python.

Blocks of `key: value` lines, mappings and lists in braces on one line, words, decimal numbers and simple quotes. Whatever else a text holds, and
whatever is wrong in it, is left to `yaml_text`: `load` then returns None. A test holds that both read the same.
"""

from __future__ import annotations

import re
from typing import Any

MOST_CHARACTERS = 16_384
LONGEST_LINE = 500
MOST_DEPTH = 12

Row = tuple[int, str, str]
"""Indentation, key and the text of the value of a line."""

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_LINE = re.compile(rf"( *)({_KEY.pattern}):(?: +(.*))?")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./+()=-]*|[A-Za-z0-9][A-Za-z0-9_./+()=-]*(?: +[A-Za-z0-9_./+()=-]+)+")
_WORDS = re.compile(r"[A-Za-z][A-Za-z0-9_./+()=,-]*|[A-Za-z0-9][A-Za-z0-9_./+()=,-]*(?: +[A-Za-z0-9_./+()=,-]+)+")
"""The same where commas part nothing."""
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+|[1-9][0-9]*[a-df-zA-DF-Z][A-Za-z0-9]*")
"""0.11.0, 1f1b: words that begin with a digit and are no number."""
_INT = re.compile(r"0|-?[1-9][0-9]*")
_FLOAT = re.compile(r"-?[0-9]+\.[0-9]+")
_QUOTED = re.compile(r"'[ -&(-~]*'|\"[ !#-\[\]-~]*\"")
_PIECE = re.compile(r" *([\[\]{},]|:(?= )|[^\[\]{},:'\"]+|'[^']*'|\"[^\"]*\")")
_NOT_WORDS = frozenset({"yes", "no", "on", "off", "true", "false", "null"})
"""In any case of letters YAML 1.1 makes something else of them."""
_NAMED = {"true": True, "false": False, "null": None}


class _NotPlain(Exception):  # no error: the other reader takes over
    """The text holds more than this reader knows."""


def load(text: str) -> dict[str, Any] | None:
    """The mapping of a text, or None where it is not plain."""
    if len(text) > MOST_CHARACTERS or not text.isascii() or "\t" in text or "\r" in text:
        return None
    try:
        rows = [row for line in text.split("\n") if (row := _row(line)) is not None]
        if not rows or rows[0][0]:
            return None
        found, end = _mapping(rows, 0, 0)
    except _NotPlain:
        return None
    return found if end == len(rows) else None


def _row(line: str) -> Row | None:
    """A line without its comment; None where nothing is left of it."""
    line = line.rstrip(" ")
    if not line or line.lstrip(" ").startswith("#"):
        return None
    if " #" in line:
        if "'" in line or '"' in line:
            raise _NotPlain
        line = line.partition(" #")[0].rstrip(" ")
    found = _LINE.fullmatch(line)
    if found is None or len(line) > LONGEST_LINE:
        raise _NotPlain
    return len(found[1]), _key(found[2]), found[3] or ""


def _mapping(rows: list[Row], index: int, depth: int) -> tuple[dict[str, Any], int]:
    """The mapping whose first row is at `index`, and the index behind its last one."""
    if depth > MOST_DEPTH:
        raise _NotPlain
    found: dict[str, Any] = {}
    indent = rows[index][0]
    while index < len(rows) and rows[index][0] == indent:
        _, key, text = rows[index]
        index += 1
        if key in found:
            raise _NotPlain
        found[key] = _value(text) if text else None
        if index < len(rows) and rows[index][0] > indent:
            if text:
                raise _NotPlain  # a scalar that goes on
            found[key], index = _mapping(rows, index, depth + 1)
    if index < len(rows) and rows[index][0] > indent:
        raise _NotPlain
    return found, index


def _value(text: str) -> Any:
    """What stands behind a key."""
    if text[0] not in "{[":
        return _word(text, _WORDS)
    pieces = _pieces(text)
    found, end = _flow(pieces, 0, 0)
    if end != len(pieces):
        raise _NotPlain
    return found


def _pieces(text: str) -> list[str]:
    """Brackets, commas, colons and what is between them."""
    found, at = [], 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            raise _NotPlain
        at = piece.end()
        if content := piece[1].rstrip(" "):
            found.append(content)
    return found


def _flow(pieces: list[str], index: int, depth: int) -> tuple[Any, int]:
    """The value that begins at a piece, and the index behind it."""
    if index == len(pieces) or depth > MOST_DEPTH:
        raise _NotPlain
    if pieces[index] == "{":
        return _flow_mapping(pieces, index + 1, depth)
    if pieces[index] == "[":
        return _flow_list(pieces, index + 1, depth)
    return _word(pieces[index], _WORD), index + 1


def _flow_mapping(pieces: list[str], index: int, depth: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    while pieces[index : index + 1] != ["}"]:
        key = _key("".join(pieces[index : index + 1]))
        if pieces[index + 1 : index + 2] != [":"] or key in found:
            raise _NotPlain
        found[key], index = _flow(pieces, index + 2, depth + 1)
        index = _behind_comma(pieces, index, "}")
    return found, index + 1


def _flow_list(pieces: list[str], index: int, depth: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    while pieces[index : index + 1] != ["]"]:
        value, index = _flow(pieces, index, depth + 1)
        found.append(value)
        index = _behind_comma(pieces, index, "]")
    return found, index + 1


def _behind_comma(pieces: list[str], index: int, end: str) -> int:
    """The index of the next member, or of the end."""
    if pieces[index : index + 1] == [","]:
        return index + 1
    if pieces[index : index + 1] != [end]:
        raise _NotPlain
    return index


def _key(text: str) -> str:
    if _KEY.fullmatch(text) is None or text.casefold() in _NOT_WORDS:
        raise _NotPlain
    return text


def _word(text: str, words: re.Pattern[str]) -> str | int | float | bool | None:
    """One scalar."""
    if text in _NAMED:
        return _NAMED[text]
    if (words.fullmatch(text) and text.casefold() not in _NOT_WORDS) or _VERSION.fullmatch(text):
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _QUOTED.fullmatch(text):
        return text[1:-1]
    raise _NotPlain
