"""What a search for the largest or smallest value found, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from everybyte.ledger.answer import Answer
from everybyte.plan.fit import FitResult, Stop
from everybyte.plan.formats import FormatResult, FormatTrial
from everybyte.plan.share import ShareResult
from everybyte.report.columns import wrap
from everybyte.report.estimate import advice
from everybyte.report.sums import needed
from everybyte.report.words import amount, short_size, spoken

MOST_HOLES = 8


def show_fit(console: Console, result: FitResult, unit: str = "GiB", rows: Sequence[Mapping[str, Any]] = ()) -> None:
    """Prints the value, what it needs, and what stops the next one; where none fits, `rows` of advice."""
    console.print(_verdict(result))
    _show_needed(console, result.answer, unit)
    if result.stop is not None:
        console.print(wrap(Text(f"  {_stopped(result.stop, unit)}"), console.width, indent=2), soft_wrap=True)
    if result.holes:
        shown = ", ".join(f"{hole:,}" for hole in result.holes[:MOST_HOLES]) + (" ..." if len(result.holes) > MOST_HOLES else "")
        side = "larger" if result.smallest else "smaller"
        console.print(Text(f"  not every {side} value fits: {shown} {'do' if len(result.holes) > 1 else 'does'} not", style="yellow"))
    for warning in result.answer.warnings if result.answer is not None else ():
        console.print(wrap(Text(f"  {warning}", style="yellow"), console.width, indent=2), soft_wrap=True)
    console.print(Text(f"  {result.tried} value{'s' if result.tried != 1 else ''} tried", style="dim"))
    if rows:
        console.print()
        console.print(advice(rows, unit, console.width, applies=False), soft_wrap=True)


def show_format(console: Console, result: FormatResult, unit: str = "GiB") -> None:
    """Prints the widest format that fits, what it needs, and why wider ones do not do."""
    found = Text("no format of weights fits", style="bold red")
    if result.value is not None:
        found = Text("weights: ", style="bold").append(result.value, style="bold green").append(" is the widest format that fits", style="bold")
    console.print(found)
    _show_needed(console, result.answer, unit)
    for trial in result.trials:
        if not trial.fits:
            console.print(Text(f"  {_declined(trial, unit)}", style="dim" if trial.refused else ""), soft_wrap=True)


def _declined(trial: FormatTrial, unit: str) -> str:
    if trial.refused is not None:
        return f"{trial.format} is refused: {trial.refused}"
    weights = f" with {short_size(trial.weights, unit)} of weights" if trial.weights is not None else ""
    short = f" by {short_size(trial.short_by, unit)}" if trial.short_by is not None and trial.short_by > 0 else ""
    return f"{trial.format}{weights} does not fit{short}" + (f": {trial.reason}" if trial.reason else "")


def _show_needed(console: Console, answer: Answer | None, unit: str) -> None:
    if answer is None or answer.hardware is None:
        return
    _, bytes_needed = needed(answer)
    line = f"needs {short_size(bytes_needed, unit)} of {amount(answer.hardware.capacity, unit, 1)} on {answer.hardware.gpu}"
    console.print(f"  {line}, {short_size(answer.headroom or 0, unit)} left")


def _verdict(result: FitResult) -> Text:
    name = result.key.split(".", 1)[1]
    if not result.is_complete:
        found = f"{result.value:,} fits, and a larger value may" if result.value is not None else "no value was found that fits"
        return Text(f"{name}: time ran out; {found}", style="bold yellow")
    if result.value is None:
        return Text(f"no {name} fits", style="bold red")
    if result.unlimited and result.limit:
        return Text.assemble((f"{name}: ", "bold"), (f"{result.value:,}", "bold green"), (f" fits, and {result.limit}", "bold"))
    if result.unlimited:
        return Text(f"{name}: memory does not limit it; {result.value:,} is the largest value tried", style="bold")
    text = Text(f"{name}: ", style="bold")
    text.append(f"{result.value:,}", style="bold green")
    return text.append(" is the smallest value that fits" if result.smallest else " is the largest value that fits", style="bold")


def _stopped(stop: Stop, unit: str) -> str:
    if stop.refused is not None:
        return f"{stop.value:,} is refused: {stop.refused}"
    if stop.short_by is None or stop.phase is None:
        return f"{stop.value:,} does not fit"
    if stop.why is not None:
        return f"{stop.value:,} does not: {stop.why}"
    if stop.short_by < 0:
        return f"{stop.value:,} does not fit, although {short_size(-stop.short_by, unit)} are left"
    return f"{stop.value:,} does not fit by {short_size(stop.short_by, unit)}: in {spoken(stop.phase)}, on {stop.rank}"


def show_share(console: Console, result: ShareResult) -> None:
    """Prints the values that work, what the cache holds at their ends, and what is wrong beside them."""
    name = result.key.split(".", 1)[1]
    if not result.intervals:
        console.print(Text(f"no {name} works", style="bold red"))
    for i, found in enumerate(result.intervals):
        text = Text(f"{name}: " if i == 0 else "and ", style="bold")
        text.append(f"{found.low:.3f} to {found.high:.3f}", style="bold green")
        console.print(text.append(" work" if i == 0 else "", style="bold"))
        if found.tokens is not None:
            console.print(f"  the cache holds {found.tokens[0]:,} tokens at the low end, {found.tokens[1]:,} at the high end")
    for side, why in (("less", result.below), ("more", result.above)):
        if why is not None:
            console.print(Text(f"  {side}: {why}"), soft_wrap=True)
    console.print(Text(f"  {result.tried} value{'s' if result.tried != 1 else ''} tried", style="dim"))
