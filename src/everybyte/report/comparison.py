"""Two files compared: the verdict, the rows that differ with their reasons, what no row explains, and the setting that most likely differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from everybyte.measure.comparing.rows import Comparison, Row
from everybyte.plan.suspects import Suspect, is_certain
from everybyte.report.columns import Cell, columns, wrap
from everybyte.report.words import CATEGORY_STYLE, FIGURE_MEANING, amount, short_size, spoken

MOST_ROWS = 24
LEAST_SHARE = 0.001
"""Of the peak: an unexplained rest below it is not worth a line."""


def show_comparison(console: Console, found: Comparison, unit: str, names: tuple[str, str], guilty: Sequence[Suspect] = ()) -> None:
    """Prints the comparison. `names` call the two sides."""
    left, right = names
    more = found.here - found.there
    console.print(wrap(Text(_verdict(found, names, unit), style="bold"), console.width))
    if found.detail == "category":
        console.print(wrap(Text(f"{right} does not say which module a block is of, so categories are compared", style="dim"), console.width))
    rows: list[list[Cell]] = [[Text(one, style="dim") for one in ("", left, right, "difference", "place and reason")]]
    shown = found.rows[:MOST_ROWS]
    rows += [[_name(row), amount(row.here, unit), amount(row.there, unit), signed(row.more, unit), _place_and_reason(row)] for row in shown]
    rest = sum(row.more for row in found.rows[MOST_ROWS:])
    if found.rows[MOST_ROWS:]:
        rows.append(["", "", "", signed(rest, unit), Text(f"{len(found.rows) - MOST_ROWS} more rows", style="dim")])
    if found.detail != "figure":
        rows.append([Text("at the peak", style="bold"), amount(found.here, unit), amount(found.there, unit), Text(signed(more, unit), style="bold")])
    console.print()
    console.print(columns(rows, "lrrrl", console.width, wraps=True))
    console.print()
    for line in (unexplained_text(found, right, unit), *suspect_texts(guilty, unit, certain=is_certain(tuple(guilty)) and found.detail != "figure")):
        if line:
            console.print(wrap(Text(line), console.width))


def _verdict(found: Comparison, names: tuple[str, str], unit: str) -> str:
    left, right = names
    if found.detail == "figure":
        return f"{len(found.rows)} of {found.figures} figures that both know differ"
    more = found.here - found.there
    word = "as much as" if not more else f"{short_size(abs(more), unit)} {'more' if more > 0 else 'less'} than"
    return f"{left} holds {word} {right}"


def _name(row: Row) -> Text:
    if row.category is None:
        return Text("figure")
    return Text(spoken(row.category), style=CATEGORY_STYLE[row.category])


def _place_and_reason(row: Row) -> str:
    place = FIGURE_MEANING.get(row.place, row.place) if row.category is None else row.place
    reason = f"{row.reason}: {row.detail}" if row.detail else row.reason
    return f"{place} · {reason}".strip(" ·")


def unexplained_text(found: Comparison, right: str, unit: str) -> str:
    """`unexplained: 1.2 GiB of b (3.0 %) lie in no row that has a name`; empty where next to nothing is left."""
    if found.share < LEAST_SHARE:
        return ""
    where = "are more than the estimate's figure" if found.detail == "figure" else "lie in no row that has a name"
    return f"unexplained: {short_size(found.unexplained, unit)} of {right} ({100 * found.share:.1f} %) {where}"


def suspect_texts(guilty: Sequence[Suspect], unit: str, *, certain: bool) -> list[str]:
    """A line a suspect, the first one as the verdict; a few figures alone make none certain."""
    lines = []
    for number, one in enumerate(guilty):
        first = "most likely differs" if certain else "may differ"
        before = "" if one.before is None else f", not {_value(one.before)}"
        lines.append(
            f"{first if not number else 'or'}: {one.key} {_value(one.value)}{before}: explains {100 * one.explains:.0f} % of the difference, "
            f"{short_size(one.distance, unit)} then differ"
        )
    return lines


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key} {_value(one)}" for key, one in value.items())
    if isinstance(value, bool) or value is None or value == []:
        return {True: "true", False: "false"}.get(value, "none") if isinstance(value, bool) else "none"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def signed(n: int, unit: str) -> str:
    """`+1.20`, `-0.30`."""
    return f"{'+' if n >= 0 else '-'}{amount(abs(n), unit)}"


def comparison_object(found: Comparison, guilty: Sequence[Suspect]) -> dict[str, Any]:
    """What a program reads of a comparison, in whole bytes."""
    return {
        "detail": found.detail,
        "here": found.here,
        "there": found.there,
        "rows": [{**{name: getattr(row, name) for name in row.__struct_fields__}, "more": row.more} for row in found.rows],
        "unexplained": {"bytes": found.unexplained, "share": found.share},
        "suspects": [{name: getattr(one, name) for name in one.__struct_fields__} for one in guilty],
    }
