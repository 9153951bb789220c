"""The tables of the readers, read from right to left: job key -> key of the framework."""

from __future__ import annotations

from typing import Any

from everybyte.formats.table import Row, table, value_tables
from everybyte.formats.writing.settings import Settings

PLAIN = ("int", "float", "bool", "text", "names", "any", "model")


def from_table(settings: Settings, *files: str) -> dict[str, Any]:
    """The keys of a framework that say the settings of a job; the first row of a table that has a job key says it."""
    found: dict[str, Any] = {}
    written: set[str] = set()
    for row in table(*files).rows:
        if row.job in ("-", "*") or row.job in written:
            continue
        value = settings.open(row.job)
        word = None if value is None else _word(row, value)
        if word is not None:
            settings.take(row.job)
            written.add(row.job)
            found[row.key] = word
    return found


def _word(row: Row, value: Any) -> Any:
    """The framework's word of a value; None if the table has none."""
    if row.kind in PLAIN:
        return list(value) if isinstance(value, tuple) else value
    words = value_tables().get(row.kind, {})
    return next((given for given, job in words.items() if job == str(value)), None)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """`{"a.b": 1}` -> `{"a": {"b": 1}}`."""
    found: dict[str, Any] = {}
    for key, value in flat.items():
        *parts, name = key.split(".")
        branch = found
        for part in parts:
            branch = branch.setdefault(part, {})
        branch[name] = value
    return found
