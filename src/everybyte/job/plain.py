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
    branches: list[tuple[str, Any, int]] = [("", raw, 0)]
    while branches:
        path, value, depth = branches.pop()
        children = _children(path, value)
        left -= len(children)
        if left < 0:
            raise BadInput(path[:60], f"the job holds more than {MOST_VALUES:,} values (aliases counted each time they are used)")
        if children and depth == MOST_DEPTH:
            raise BadInput(path[:60], f"the job is nested more than {MOST_DEPTH} levels deep")
        for child_path, child in children:
            if isinstance(child, dict | list | tuple):
                branches.append((child_path, child, depth + 1))
            else:
                _refuse_unless_scalar(child_path, child)


def join(path: str, key: str) -> str:
    """The key path of `key` inside `path`. A key that would spoil a line of text is shown quoted."""
    shown = key if key.isprintable() and len(key) <= LONGEST_KEY else repr(key[:LONGEST_KEY])
    return f"{path}.{shown}" if path else shown


def _children(path: str, branch: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> list[tuple[str, Any]]:
    if not isinstance(branch, dict):
        return [(f"{path}[{i}]", item) for i, item in enumerate(branch)]
    for key in branch:
        if not isinstance(key, str):
            raise BadInput(path or "job", f"the key {key!r:.80} is not text; put it in quotes")
        _refuse_unless_text(path or "job", key)
    return [(join(path, key), item) for key, item in branch.items()]


def _refuse_unless_scalar(path: str, value: Any) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        _refuse_unless_text(path, value)
    elif isinstance(value, int):
        if abs(value) > LARGEST_INT:
            raise BadInput(path, "the number does not fit in 64 bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise BadInput(path, f"{value} is not a finite number")
    else:
        raise BadInput(path, f"{value!s:.80} is a {type(value).__name__}; if it is meant as text, put it in quotes")


def _refuse_unless_text(path: str, text: str) -> None:
    if text.isascii() and "\x00" not in text:
        return
    if "\x00" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise BadInput(path, "the text holds a character that no text may hold (NUL or half of a surrogate pair)")
