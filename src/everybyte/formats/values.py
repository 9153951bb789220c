"""Values as people write them: numbers as text, `5e8`, `20_000`, `True`, `yes`. None is what cannot be read."""

from __future__ import annotations

import re
from typing import Any

_NUMBER = re.compile(r"[-+]?(\d[\d_]*)(\.\d*)?([eE][-+]?\d+)?|[-+]?\.\d+([eE][-+]?\d+)?")
_TRUE = frozenset({"true", "yes", "on", "1", "t", "y"})
_FALSE = frozenset({"false", "no", "off", "0", "f", "n"})
_PLACEHOLDER = re.compile(r"<[^<>]*>|\{\{.*\}\}|\$\{?\w+|/?path/to\b.*|your[-_].*|CONFIG_[A-Z_]+", re.IGNORECASE)


def number(value: Any) -> float | int | None:
    """A number, whole if it is: `"5e8"` is 500000000."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value.strip()
        if not _NUMBER.fullmatch(text):
            return None
        value = float(text.replace("_", "")) if re.search(r"[.eE]", text) else int(text.replace("_", ""))
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**63 else value
    return value if isinstance(value, int) else None


def whole(value: Any) -> int | None:
    """A whole number."""
    found = number(value)
    return found if isinstance(found, int) else None


def boolean(value: Any) -> bool | None:
    """A switch."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().casefold()
    return True if text in _TRUE else False if text in _FALSE else None


def names(value: Any) -> list[str] | None:
    """A list of names: a list, or text with commas, blanks or brackets between them."""
    if isinstance(value, str):
        return [part for part in re.split(r"[\s,\[\]'\"]+", value) if part]
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return [part for item in value for part in (names(item) or [])]
    return None


def is_placeholder(value: Any) -> bool:
    """Whether a text waits to be filled in: `<model>`, `/path/to/model`, `your-model`, `{{ .Values.model }}`."""
    return isinstance(value, str) and bool(_PLACEHOLDER.fullmatch(value.strip()))
