"""What a log states, as a table."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from everybyte.basics.units import GiB
from everybyte.measure.start_logs.figure import Figure, StartLog

RATIOS = ("memory_fraction", "bits_per_weight", "params")


def screen(found: StartLog) -> Iterator[Text]:
    """A line a figure: name, value, rank, line of the log."""
    yield Text(" ".join(word for word in (found.engine, found.version) if word) or "unknown engine", style="bold")
    yield Text(f"{'figure':<22}{'value':>18}  {'rank':<12}line")
    for one in found.measured:
        yield Text(f"{one.figure:<22}{_value(one):>18}  {one.rank:<12}{one.line:,}")
    if found.given:
        yield Text()
        yield Text("Also stated")
        for name, value in found.given.items():
            yield Text(f"{name:<22}{f'{value:,.6g}' if name in RATIOS else f'{value / GiB:,.2f} GiB':>18}")


def _value(one: Figure) -> str:
    if one.unit == "bytes":
        return f"{one.value / GiB:,.3f} GiB"
    return f"{one.value:,.2f}x" if one.unit == "x" else f"{one.value:,.0f} {one.unit}"
