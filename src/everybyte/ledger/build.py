"""From lines of each phase to the entries of a ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from everybyte.basics.record import Record
from everybyte.ledger.entry import Basis, Category, Entry, Phase
from everybyte.ledger.ledger import Ledger


class Text(NamedTuple):
    """Formula and symbols of a line."""

    formula: str
    symbols: dict[str, int]


class Line(NamedTuple):
    """Bytes of one phase, on the way to an Entry. `text` is written only when an entry is made of it."""

    id: str
    category: Category
    bytes: int
    text: Callable[[], Text]
    source: str
    basis: Basis = "exact"
    low: int | None = None
    high: int | None = None
    """What the bytes may be where something decides that the job does not say."""


class Known(Record, frozen=True):
    """A text that is known at once. Equal ones are equal, so that bills which hold such lines are found again."""

    formula: str
    symbols: tuple[tuple[str, int], ...]

    def __call__(self) -> Text:
        """The text."""
        return Text(self.formula, dict(self.symbols))


def plain(formula: str, **symbols: int) -> Known:
    """A text that is known at once."""
    return Known(formula, tuple(symbols.items()))


def build(phases: Mapping[Phase, Iterable[Line]]) -> Ledger:
    """One entry for each line that stays the same over neighbouring phases; a row that changes its size has an entry for each size."""
    order = list(phases)
    entries: dict[tuple[str, Category, int, int], list[Phase]] = {}
    lines: dict[tuple[str, Category, int, int], Line] = {}
    current: dict[tuple[str, Category], tuple[int, int, int]] = {}
    for position, phase in enumerate(order):
        for line in phases[phase]:
            if not line.bytes:
                continue
            name = (line.id, line.category)
            size, start, last = current.get(name, (-1, 0, -2))
            if size != line.bytes or last != position - 1:
                start = position
            current[name] = (line.bytes, start, position)
            key = (*name, line.bytes, start)
            entries.setdefault(key, []).append(phase)
            lines.setdefault(key, line)
    return Ledger(tuple(_entry(lines[key], tuple(found)) for key, found in entries.items()))


def _entry(line: Line, phases: tuple[Phase, ...]) -> Entry:
    formula, symbols = line.text()
    return Entry(
        id=line.id,
        category=line.category,
        bytes=line.bytes,
        phases=phases,
        formula=formula,
        symbols=symbols,
        source=line.source,
        basis=line.basis,
        low=line.low,
        high=line.high,
    )
