"""The first gate of a job: plain data of bearable size, so that nothing behind it can be overwhelmed."""

from __future__ import annotations

import math
from typing import Any

from everybyte.basics.errors import BadInput

MOST_VALUES = 100_000
"""A job with a whole config.json inside has a few hundred values. YAML aliases can stand for billions."""
MOST_DEPTH = 40
LARGEST_INT = 2**63 - 1
LONGEST_KEY = 80


def refuse_unless_plain(raw: dict[Any, Any]) -> None:
    """Raises BadInput unless `raw` is a bounded tree of text-keyed mappings, lists, text, finite numbers, bools and nulls."""
    left = MOST_VALUES
    branches: list[tuple[tuple[str | int, ...], Any]] = [((), raw)]
    while branches:
        keys, value = branches.pop()
        left -= len(value)
        if left < 0:
            raise BadInput(_path(keys)[:60], f"the job holds more than {MOST_VALUES:,} values (aliases counted each time they are used)")
        if value and len(keys) == MOST_DEPTH:
            raise BadInput(_path(keys)[:60], f"the job is nested more than {MOST_DEPTH} levels deep")
        if isinstance(value, dict):
            _refuse_unless_text_keys(keys, value)
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(child, dict | list | tuple):
                branches.append(((*keys, key), child))
            elif (fault := _fault(child)) is not None:
                raise BadInput(_path((*keys, key)), fault)


def _path(keys: tuple[str | int, ...]) -> str:
    path = ""
    for key in keys:
        path = join(path, key) if isinstance(key, str) else f"{path}[{key}]"
    return path


def join(path: str, key: str) -> str:
    """The key path of `key` inside `path`. A key that would spoil a line of text is shown quoted."""
    shown = key if key.isprintable() and len(key) <= LONGEST_KEY else repr(key[:LONGEST_KEY])
    return f"{path}.{shown}" if path else shown


def _refuse_unless_text_keys(keys: tuple[str | int, ...], branch: dict[Any, Any]) -> None:
    for key in branch:
        if not isinstance(key, str):
            raise BadInput(_path(keys) or "job", f"the key {key!r:.80} is not text; put it in quotes")
        if (fault := _fault(key)) is not None:
            raise BadInput(_path(keys) or "job", fault)


def _fault(value: Any) -> str | None:
    """What is wrong with a value that is no branch."""
    if isinstance(value, str):
        if (not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value)) or "\x00" in value:
            return "the text holds a character that no text may hold (NUL or half of a surrogate pair)"
    elif isinstance(value, int):
        if abs(value) > LARGEST_INT:
            return "the number does not fit in 64 bits"
    elif isinstance(value, float):
        if not math.isfinite(value):
            return f"{value} is not a finite number"
    elif value is not None:
        return f"{value!s:.80} is a {type(value).__name__}; if it is meant as text, put it in quotes"
    return None
