"""The entries of one kind of rank: totals by phase, the peak, and comparison."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from everybyte.ledger.display import Displayed
from everybyte.ledger.entry import OUTSIDE_ALLOCATOR, Entry, Phase


class PhaseTotal(msgspec.Struct, frozen=True):
    """What the allocator holds at the highest instant of a phase."""

    name: Phase
    allocated: int


class Ledger(Displayed, msgspec.Struct, frozen=True):
    """All entries of one kind of rank. A peak is a maximum over phases, never a sum of maxima."""

    entries: tuple[Entry, ...]

    def living(self, phase: Phase) -> tuple[Entry, ...]:
        """The entries that live at the highest instant of `phase`."""
        return tuple(e for e in self.entries if phase in e.phases)

    def total(self, phase: Phase) -> int:
        """Bytes inside the allocator at the highest instant of `phase`."""
        return sum(e.bytes for e in self.entries if phase in e.phases and e.category not in OUTSIDE_ALLOCATOR)

    def outside(self, phase: Phase) -> int:
        """Bytes of `phase` that the allocator does not know of (CUDA context and the like)."""
        return sum(e.bytes for e in self.entries if phase in e.phases and e.category in OUTSIDE_ALLOCATOR)

    def phases(self) -> tuple[PhaseTotal, ...]:
        """Totals of all phases that have entries, in the order of time."""
        seen: dict[Phase, int] = {}
        for entry in self.entries:
            for phase in entry.phases:
                seen[phase] = seen.get(phase, 0) + (0 if entry.category in OUTSIDE_ALLOCATOR else entry.bytes)
        return tuple(PhaseTotal(name, seen[name]) for name in Phase.__args__ if name in seen)  # type: ignore[attr-defined]

    def peak(self) -> PhaseTotal:
        """The highest phase; the first one of equals."""
        return max(self.phases(), key=lambda p: p.allocated)


def difference(a: Ledger, b: Ledger, phase: Phase) -> list[tuple[str, int, int]]:
    """Rows (id, bytes in a, bytes in b) of `phase` that differ, the largest difference first."""
    left, right = by_id(a.living(phase)), by_id(b.living(phase))
    rows = [(i, left.get(i, 0), right.get(i, 0)) for i in dict.fromkeys([*left, *right])]
    return sorted((r for r in rows if r[1] != r[2]), key=lambda r: -abs(r[1] - r[2]))


def by_id(entries: Iterable[Entry]) -> dict[str, int]:
    """Bytes by entry id."""
    out: dict[str, int] = {}
    for entry in entries:
        out[entry.id] = out.get(entry.id, 0) + entry.bytes
    return out
