"""Predicted against measured for all shipped records, as it was computed for this release: `data/accuracy.json`, which `make docs` writes.

Estimating every record anew takes a minute or more; the table is read in milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from os.path import dirname, join

import msgspec

from everybyte.measure.accuracy import Comparison, Wanted

FILE = join(dirname(__file__), "data", "accuracy.json")
DIGITS = 9
"""Significant digits of an error that are kept."""
WIDTH_DIGITS = 3


class Shipped(msgspec.Struct, frozen=True, kw_only=True):
    """The comparisons of the product and of the textbook equations, in the order of the records."""

    ours: tuple[Comparison, ...]
    textbook: tuple[Comparison, ...]


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """A comparison as the file holds it: its fields without their names."""

    id: str
    group: str
    figure: str
    measured: int | float
    predicted: int | float | None
    error: float | None
    inside: bool | None
    width: float | None
    completeness: str
    fresh: bool
    unanswered: str | None


class _Table(msgspec.Struct, frozen=True):
    ours: tuple[_Row, ...]
    textbook: tuple[_Row, ...]


@cache
def shipped() -> Shipped:
    """The table of this release."""
    with open(FILE, "rb") as file:
        table = msgspec.json.decode(file.read(), type=_Table)
    return Shipped(ours=_comparisons(table.ours), textbook=_comparisons(table.textbook))


def chosen(comparisons: Sequence[Comparison], wanted: Wanted) -> list[Comparison]:
    """The comparisons of the wanted groups and figures."""
    return [c for c in comparisons if wanted.group(c.group) and wanted.figure(c.figure)]


def text_of(table: Shipped) -> str:
    """The table as the file holds it, a line for each comparison, so that a change of one shows as one."""
    parts = [f'"{name}":[\n' + ",\n".join(_line(row) for row in rows) + "\n]" for name, rows in (("ours", table.ours), ("textbook", table.textbook))]
    return "{" + ",".join(parts) + "}\n"


def _line(row: Comparison) -> str:
    shown = _Row(
        row.id,
        row.group,
        row.figure,
        row.measured,
        row.predicted,
        _short(row.error, DIGITS),
        row.inside,
        _short(row.width, WIDTH_DIGITS),
        row.completeness,
        row.fresh,
        row.unanswered,
    )
    return msgspec.json.encode(shown).decode()


def _short(value: float | None, digits: int) -> float | None:
    return None if value is None else float(f"{value:.{digits}g}")


def _comparisons(rows: Sequence[_Row]) -> tuple[Comparison, ...]:
    return tuple(Comparison(**{name: getattr(row, name) for name in _Row.__struct_fields__}) for row in rows)
