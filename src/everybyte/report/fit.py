"""What a search for the largest or smallest value found, for people."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from everybyte.plan.fit import FitResult, Stop
from everybyte.report.sums import needed
from everybyte.report.words import amount, short_size, spoken

MOST_HOLES = 8


def show_fit(console: Console, result: FitResult, unit: str = "GiB") -> None:
    """Prints the value, what it needs, and what stops the next one."""
    console.print(_verdict(result))
    if result.answer is not None and result.answer.hardware is not None:
        _, bytes_needed = needed(result.answer)
        hardware = result.answer.hardware
        line = f"needs {short_size(bytes_needed, unit)} of {amount(hardware.capacity, unit, 1)} on {hardware.gpu}"
        console.print(f"  {line}, {short_size(result.answer.headroom or 0, unit)} left")
    if result.stop is not None:
        console.print(f"  {_stopped(result.stop, unit)}")
    if result.holes:
        shown = ", ".join(f"{hole:,}" for hole in result.holes[:MOST_HOLES]) + (" ..." if len(result.holes) > MOST_HOLES else "")
        side = "larger" if result.smallest else "smaller"
        console.print(Text(f"  not every {side} value fits: {shown} {'do' if len(result.holes) > 1 else 'does'} not", style="yellow"))
    for warning in result.answer.warnings if result.answer is not None else ():
        console.print(Text(f"  {warning}", style="yellow"), soft_wrap=True)
    console.print(Text(f"  {result.tried} value{'s' if result.tried != 1 else ''} tried", style="dim"))


def _verdict(result: FitResult) -> Text:
    name = result.key.split(".", 1)[1]
    if result.value is None:
        return Text(f"no {name} fits", style="bold red")
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
    if stop.short_by < 0:
        return f"{stop.value:,} does not fit, although {short_size(-stop.short_by, unit)} are left"
    return f"{stop.value:,} does not fit by {short_size(stop.short_by, unit)}: in {spoken(stop.phase)}, on {stop.rank}"
