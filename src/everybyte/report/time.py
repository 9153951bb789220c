"""The ledger of time of an answer, for people: each term with its share, formula and source."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from everybyte.ledger.answer import Answer
from everybyte.report.columns import Cell, columns
from everybyte.report.language import said
from everybyte.report.words import speed_text


def show_time(console: Console, answer: Answer) -> None:
    """Prints the terms of a training step, or of a decode step, the longest first."""
    total = sum(term.seconds for term in answer.time)
    what = "A training step" if "step.time_s" in answer.figures else "A decode step"
    console.print(Text(f"{said(what)}: {_short(total)}", style="bold"))
    rows: list[list[Cell]] = [[Text(said(word), style="dim") for word in ("term", "time", "share", "formula and source")]]
    for term in sorted(answer.time, key=lambda one: -one.seconds):
        share = f"{100 * term.seconds / total:.0f} %"
        why = Text(said(term.formula)).append(f" ({said(term.source)})", style="dim")
        rows.append([Text(said(term.name), style="bold"), _short(term.seconds), share, why])
    console.print(columns(rows, "lrrl", console.width, wraps=True))


def _short(seconds: float) -> str:
    """Microseconds below a millisecond."""
    return f"{seconds * 1e6:,.0f} us" if seconds < 1e-3 else speed_text("step.time_s", seconds) if seconds >= 0.01 else f"{seconds * 1e3:.2f} ms"
