"""How a row of the ledger came about: the formula in the field's letters, the numbers put in, the bytes, the source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.cells import set_cell_size
from rich.console import Console
from rich.text import Text

from everybyte.basics.origin import Setting
from everybyte.basics.units import show_bytes
from everybyte.ledger.answer import Answer, RankAnswer
from everybyte.ledger.entry import CATEGORIES, OUTSIDE_ALLOCATOR, Basis, Entry
from everybyte.report.columns import Cell, columns, wrap
from everybyte.report.differences import causes
from everybyte.report.language import said
from everybyte.report.words import CATEGORY_STYLE, shown_value, spoken

MOST_OTHERS = 8
UNCUT = 10_000
"""Width of lines for files and pipes, where nothing is gained by cutting a formula."""

NARROWEST = 30
"""Columns below which lines are no longer broken to fit."""

BASIS_MEANING: dict[Basis, str] = {
    "exact": "exact: counted from the tensors of the code",
    "formula": "formula: a published or documented rule",
    "calibrated": "calibrated: fitted to measured runs",
    "assumed": "assumed: not stated, the usual value",
}


def show_setting(console: Console, setting: Setting[Any]) -> None:
    """Prints a setting and where its value comes from."""
    console.print(
        columns([["setting", Text(setting.key, style="bold")], ["value", shown_value(setting.value)], ["origin", setting.origin]], "ll", console.width)
    )


def show_entries(console: Console, entries: tuple[Entry, ...], rank: RankAnswer) -> None:
    """Prints each entry in full."""
    for i, entry in enumerate(entries):
        if i:
            console.print()
        console.print(_entry(entry, rank, console.width))
    if len(entries) > 1:
        console.print()
        for phase in dict.fromkeys((rank.peak_phase, "between_steps")):
            total = sum(e.bytes for e in entries if phase in e.phases)
            if not total:
                continue
            console.print(Text(f"{len(entries)} rows, {spoken(phase)} total {show_bytes(total)} ({total:,} bytes)", style="bold"))


def _entry(entry: Entry, rank: RankAnswer, width: int) -> Text:
    title = Text(entry.id, style=f"bold {CATEGORY_STYLE[entry.category]}")
    title.append(f"  {spoken(entry.category)}", style="not bold dim")
    rows: list[list[Cell]] = [["formula", entry.formula]]
    numbers = entry.numbers()
    if numbers != entry.formula:
        rows.append(["numbers", numbers])
    rows.append(["bytes", Text(f"{entry.bytes:,}", style="bold").append(f"  = {show_bytes(entry.bytes)}{_share(entry, rank)}", style="not bold")])
    if entry.low is not None and entry.high is not None:
        rows.append(["range", f"{show_bytes(entry.low)} – {show_bytes(entry.high)}"])
    rows.append(["alive in", ", ".join(spoken(phase) for phase in entry.phases)])
    rows.append(["basis", BASIS_MEANING[entry.basis]])
    rows.append(["source", entry.source])
    body = Text("\n").join(_wrapped(name if isinstance(name, str) else name.plain, value, width) for name, value in rows)
    return Text("\n").join([title, body])


def _wrapped(name: str, value: Cell, width: int) -> Text:
    """A named line that goes on below itself where it is longer than the console."""
    text = value if isinstance(value, Text) else Text(value)
    return wrap(Text.assemble((f"  {set_cell_size(said(name), 9)}", "dim"), text), max(width, NARROWEST), indent=11)


def _share(entry: Entry, rank: RankAnswer) -> str:
    if rank.peak_phase not in entry.phases or entry.category in OUTSIDE_ALLOCATOR:
        return ""
    total = sum(e.bytes for e in rank.ledger if rank.peak_phase in e.phases and e.category not in OUTSIDE_ALLOCATOR)
    return f", {100 * entry.bytes / total:.1f} % of the peak in {spoken(rank.peak_phase)}" if total else ""


def show_ledger(console: Console, answer: Answer, rank: RankAnswer) -> None:
    """Prints the whole ledger of one kind of rank by category, each row with its formula and numbers, then the settings and their origins."""
    console.print(Text(f"Ledger of {rank.label} ({rank.gpus} GPU{'s' if rank.gpus != 1 else ''}), peak in {spoken(rank.peak_phase)}", style="bold"))
    if len(answer.ranks) > 1:
        others = [other for other in answer.ranks if other is not rank]
        rows: list[list[Cell]] = [[other.label, Text(causes(rank, other), style="dim")] for other in others[:MOST_OTHERS]]
        console.print(Text("Difference to other rank types (--against shows all rows, --rank another ledger)", style="dim"))
        console.print(columns(rows, "ll", console.width, indent=1))
        if len(others) > MOST_OTHERS:
            console.print(Text(f" and {len(others) - MOST_OTHERS} more rank types: {', '.join(other.label for other in others[MOST_OTHERS:])}", style="dim"))
    width = console.width if console.is_terminal else UNCUT
    for block in _blocks(rank, width):
        console.print()
        console.print(block, soft_wrap=True)
    if answer.settings:
        console.print()
        console.print(Text("Settings and their origin", style="bold"))
        rows = [[setting.key, shown_value(setting.value), Text(setting.origin, style="dim")] for setting in answer.settings]
        console.print(columns(rows, "lll", width, indent=1), soft_wrap=True)


def _blocks(rank: RankAnswer, width: int) -> Iterator[Text]:
    for category in CATEGORIES:
        entries = [e for e in rank.ledger if e.category == category]
        if entries:
            title = Text(spoken(category), style=f"bold {CATEGORY_STYLE[category]}")
            rows: list[list[Cell]] = []
            for e in sorted(entries, key=lambda e: -e.bytes):
                mark = Text("peak" if rank.peak_phase in e.phases else "", style="dim")
                rows.append([e.id, show_bytes(e.bytes), mark, _equation(e)])
            yield Text("\n").join([title, columns(rows, "lrll", width, indent=1)])


def _equation(entry: Entry) -> Text:
    text = Text(entry.formula)
    numbers = entry.numbers()
    return text.append(f" = {numbers}", style="dim") if numbers != entry.formula else text
