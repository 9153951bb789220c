"""What differs between two kinds of rank, each at its own peak: by category and place, whichever layers they hold."""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from everybyte.ledger.answer import RankAnswer
from everybyte.ledger.entry import Category
from everybyte.report.columns import Cell, columns, wrap
from everybyte.report.sums import by_category, places
from everybyte.report.words import CATEGORY_STYLE, amount, short_size, spoken

MOST_ROWS = 24
MOST_CAUSES = 3


class Difference(NamedTuple):
    """Bytes of one place in two kinds of rank."""

    category: Category
    place: str
    here: int
    there: int

    @property
    def more(self) -> int:
        """How much more is here."""
        return self.here - self.there


def differences(here: RankAnswer, there: RankAnswer) -> list[Difference]:
    """The places that differ, the largest difference first. `layers.0-7/mlp` and `layers.8-15/mlp` are one place: the layers of a stage."""
    left, right = _by_place(here), _by_place(there)
    rows = [Difference(*key, left.get(key, 0), right.get(key, 0)) for key in dict.fromkeys([*left, *right])]
    return sorted((row for row in rows if row.more), key=lambda row: -abs(row.more))


def _by_place(rank: RankAnswer) -> dict[tuple[Category, str], int]:
    return {(group.category, name): size for group in by_category(rank) for name, size in places(group.entries, merge=True)}


def causes(here: RankAnswer, there: RankAnswer, unit: str = "GiB") -> str:
    """`activation layers/mlp +3.10, optimizer state head -1.20`: the largest differences in a line."""
    found = [f"{spoken(row.category)} {row.place} {_signed(row.more, unit)}" for row in differences(here, there)[:MOST_CAUSES]]
    return " · ".join(found) or "nothing"


def show_differences(console: Console, here: RankAnswer, there: RankAnswer, unit: str = "GiB", names: tuple[str, str] | None = None) -> None:
    """Prints the verdict in a line and the places below. `names` call the two sides; without them they are the labels of the ranks."""
    left, right = names or (here.label, there.label)
    peaks = [rank.figures["peak.allocated"] for rank in (here, there)]
    more = peaks[0] - peaks[1]
    word = "as much as" if not more else f"{short_size(abs(more), unit)} {'more' if more > 0 else 'less'} than"
    console.print(wrap(Text(f"{left} allocates {word} {right}", style="bold"), console.width))
    console.print(Text(f"each at its peak: {spoken(here.peak_phase)} and {spoken(there.peak_phase)}", style="dim"))
    rows: list[list[Cell]] = [[Text(word, style="dim") for word in ("category", left, right, "difference", "place")]]
    found = differences(here, there)
    for row in found[:MOST_ROWS]:
        name = Text(spoken(row.category), style=CATEGORY_STYLE[row.category])
        rows.append([name, amount(row.here, unit), amount(row.there, unit), _signed(row.more, unit), row.place])
    rest = sum(row.more for row in found[MOST_ROWS:])
    if rest:
        rows.append(["", "", "", _signed(rest, unit), Text(f"{len(found) - MOST_ROWS} more places", style="dim")])
    rows.append([Text("allocated", style="bold"), *(amount(peak, unit) for peak in peaks), Text(_signed(more, unit), style="bold")])
    console.print()
    console.print(columns(rows, "lrrrl", console.width))


def told_apart(here: tuple[str, str], there: tuple[str, str]) -> tuple[str, str]:
    """What to call two (file, label of the rank): by file, where that tells them apart, and by the label where it is not the same."""
    files = tuple(PurePath(path).stem for path, _ in (here, there))
    if files[0] == files[1]:
        files = (here[0], there[0])
    if here[1] == there[1] and here[0] != there[0]:
        return files[0], files[1]
    return f"{files[0]} {here[1]}".rstrip(), f"{files[1]} {there[1]}".rstrip()


def _signed(n: int, unit: str) -> str:
    return f"{'+' if n >= 0 else '-'}{amount(abs(n), unit)}"
