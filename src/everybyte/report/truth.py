"""Predicted against measured, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from everybyte.measure.accuracy import Comparison, Summary
from everybyte.report.columns import Cell, columns


def show_truth(console: Console, summaries: Sequence[Summary], totals: Sequence[Summary], textbook: dict[tuple[str, str], Summary] | None) -> None:
    """Prints a row for each group and figure, then the `totals`; with `textbook` the errors of its equations on the same records stand where the width is."""
    titles = ["group", "figure", "answered", "median", "p90", "bias", "in range", *(["textbook", "its p90"] if textbook is not None else ["width"])]
    rows: list[list[Cell]] = [[Text(title, style="bold") for title in titles]]
    for summary in [*summaries, *totals]:
        row: list[Cell] = [summary.group, summary.figure, f"{summary.answered}/{summary.asked}", _percent(summary.median), _percent(summary.p90)]
        row += [_percent(summary.bias, signed=True), _whole(summary.inside)]
        if textbook is None:
            row.append(_whole(summary.width))
        else:
            other = textbook.get((summary.group, summary.figure))
            row += [_percent(other.median if other else None), _percent(other.p90 if other else None)]
        rows.append([cell if isinstance(cell, Text) else Text(cell, style="bold" if summary in totals else "") for cell in row])
    console.print(columns(rows, "llrrrrrrr"[: len(titles)], console.width))


def show_worst(console: Console, comparisons: Sequence[Comparison], count: int) -> None:
    """Prints the largest errors, then why records are not answered."""
    answered = sorted((c for c in comparisons if c.error is not None), key=lambda c: -abs(c.error or 0))
    rows: list[list[Cell]] = [[Text(title, style="bold") for title in ("error", "figure", "predicted", "measured", "record")]]
    rows += [[_percent(c.error, signed=True), c.figure, f"{c.predicted:,}", f"{c.measured:,}", c.id] for c in answered[:count]]
    console.print(columns(rows, "rlrrl", console.width))
    reasons: dict[str, int] = {}
    for c in comparisons:
        if c.unanswered is not None:
            reasons[c.unanswered] = reasons.get(c.unanswered, 0) + 1
    if reasons:
        console.print()
        console.print(Text("not answered", style="bold"))
        for reason, times in sorted(reasons.items(), key=lambda item: -item[1])[:count]:
            console.print(Text(f" {times:>4}  {reason}"), soft_wrap=True)


def _whole(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _percent(share: float | None, *, signed: bool = False) -> str:
    """Two digits after the point, one from 10 % on, so that the table fits a terminal."""
    if share is None:
        return ""
    digits = 2 if abs(share) < 0.1 else 1
    return f"{100 * share:{'+' if signed else ''}.{digits}f} %"
