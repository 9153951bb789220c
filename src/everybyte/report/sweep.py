"""The rows of a sweep for people: what tells the combinations apart, the verdict, memory and speed, or why there is no answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from everybyte.basics.units import GiB
from everybyte.grid.rows import ERROR, Row
from everybyte.grid.run import Grid
from everybyte.report.columns import GAP, Cell, columns, wrap
from everybyte.report.language import said


def _gib(value: Any) -> str:
    return f"{value / GiB:,.1f}"


def _verdict(row: Row) -> str:
    if row.get("verdict") is not None:
        return str(row["verdict"])
    return "" if row.get("fits") is None else "fits" if row["fits"] else "does not fit"


FIGURES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "peak.allocated": ("allocated", _gib),
    "peak.device": ("device GiB", _gib),
    "peak.device.high": ("at most", _gib),
    "headroom": ("left", _gib),
    "kv.tokens": ("cache tokens", lambda value: f"{value:,}"),
    "step.time_s": ("s/step", lambda value: f"{value:.3g}"),
    "tokens_per_s_per_gpu": ("tokens/s/GPU", lambda value: f"{value:,.0f}"),
    "decode.tokens_per_s": ("tokens/s", lambda value: f"{value:,.0f}"),
}
"""Column of a row -> its title, and how a value is written. Sizes are GiB."""
DISPENSABLE = ("peak.allocated", "tokens_per_s_per_gpu", "peak.device.high", "headroom", "step.time_s", "kv.tokens")
"""Columns that a narrow terminal goes without, the first one first."""


def show_grid(console: Console, grid: Grid, most: int) -> None:
    """Prints at most `most` rows, and how many combinations fit, do not, and have no answer, with the commonest reasons."""
    rows = grid.rows[:most]
    if rows:
        console.print(_table(rows, console.width))
    if len(grid.rows) > most:
        _say(console, f"and {len(grid.rows) - most:,} more rows; --rows prints more, --to keeps all in a file", "dim")
    _say(console, _summary(grid))
    reasons = Counter(str(row[ERROR]) for row in grid.rows if row[ERROR] is not None)
    for why, count in reasons.most_common(3):
        _say(console, f"  {count:,}: {why}", "dim")


def _table(rows: Sequence[Row], width: int) -> Text:
    names = list(dict.fromkeys(name for row in rows for name in _axes(row)))
    figures = [name for name in FIGURES if any(row.get(name) is not None for row in rows)]
    for name in ("", *DISPENSABLE):
        figures = [one for one in figures if one != name]
        lines = _lines(rows, names, figures)
        if _width(lines) <= width:
            break
    return columns(lines, "l" * len(names) + "r" * len(figures) + "l", width)


def _lines(rows: Sequence[Row], names: Sequence[str], figures: Sequence[str]) -> list[Sequence[Cell]]:
    titles = [*_short(names), *(said(FIGURES[name][0]) for name in figures), said("verdict")]
    lines: list[Sequence[Cell]] = [[Text(title, style="bold") for title in titles]]
    for row in rows:
        axes = [_written(row.get(name)) for name in names]
        numbers = ["" if row.get(name) is None else FIGURES[name][1](row[name]) for name in figures]
        lines.append([*axes, *numbers, said(_verdict(row) if row[ERROR] is None else "no answer")])
    return lines


def _width(lines: Sequence[Sequence[Cell]]) -> int:
    """Of the whole table, without a limit."""
    widest = (max(Text(str(cell)).cell_len for cell in column) for column in zip(*lines, strict=True))
    return sum(widest) + GAP * (len(lines[0]) - 1)


def _axes(row: Row) -> list[str]:
    """What stands before the figures: the values of the combination."""
    found = []
    for name in row:
        if name in ("fits", ERROR):
            break
        found.append(name)
    return found


def _short(names: Sequence[str]) -> list[str]:
    """The last word of each key path where it is enough to tell them apart."""
    last = [name.rpartition(".")[2] for name in names]
    return [short if last.count(short) == 1 else name for short, name in zip(last, names, strict=True)]


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _summary(grid: Grid) -> str:
    fits = sum(row.get("fits") is True for row in grid.rows)
    not_fits = sum(row.get("fits") is False for row in grid.rows)
    parts = [f"{len(grid.rows):,} combinations", f"{fits:,} fit", f"{not_fits:,} do not"]
    return ", ".join(parts) + (f", {grid.failed:,} have no answer:" if grid.failed else "")


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(wrap(Text(text, style=style), console.width, indent=2))
