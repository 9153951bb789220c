"""What one kind of rank holds, by category: what lives in a phase, and at the peak also what the allocator reserves beyond it."""

from __future__ import annotations

from everybyte.ledger.answer import RankAnswer
from everybyte.ledger.entry import CATEGORIES, OUTSIDE_ALLOCATOR, Category, Phase


def by_category(rank: RankAnswer, needed: int | None = None) -> dict[Category, int]:
    """Bytes by category that add up to `needed` (if left out, to the rank's widest known figure).

    The ledger gives what lives in the peak phase and what lies outside the allocator. The rest is what the allocator has reserved and does not use at that
    instant; it counts as fragmentation. Where a given figure is smaller than what lives there is no rest, and the sum stays that of the ledger.
    """
    found = living(rank, rank.peak_phase)
    total = widest(rank) if needed is None else needed
    rest = total - sum(found.values())
    if rest > 0:
        found["fragmentation"] = found.get("fragmentation", 0) + rest
    return {category: found[category] for category in CATEGORIES if category in found}


def living(rank: RankAnswer, phase: Phase, *, outside: bool = True) -> dict[Category, int]:
    """Bytes by category at the highest instant of a phase; with `outside` also those that the allocator does not know of."""
    found: dict[Category, int] = {}
    for entry in rank.ledger:
        if phase in entry.phases and entry.bytes and (outside or entry.category not in OUTSIDE_ALLOCATOR):
            found[entry.category] = found.get(entry.category, 0) + entry.bytes
    return found


def widest(rank: RankAnswer) -> int:
    """The widest of torch's three figures that the rank has: what the device must hold."""
    return next((rank.figures[name] for name in ("peak.device", "peak.reserved", "peak.allocated") if name in rank.figures), 0)
