"""What one kind of rank holds at its peak, by category: what lives, what the allocator reserves beyond it, and what lies outside the allocator."""

from __future__ import annotations

from everybyte.ledger.answer import RankAnswer
from everybyte.ledger.entry import CATEGORIES, Category


def held(rank: RankAnswer, needed: int | None = None) -> dict[Category, int]:
    """Bytes by category that add up to `needed` (if left out, to the rank's widest known figure).

    The ledger gives what lives in the peak phase and what lies outside the allocator. The rest is what the allocator has reserved and does not use at that
    instant; it counts as fragmentation. Where a given figure is smaller than what lives there is no rest, and the sum stays that of the ledger.
    """
    found: dict[Category, int] = {}
    for entry in rank.ledger:
        if rank.peak_phase in entry.phases and entry.bytes:
            found[entry.category] = found.get(entry.category, 0) + entry.bytes
    total = widest(rank) if needed is None else needed
    rest = total - sum(found.values())
    if rest > 0:
        found["fragmentation"] = found.get("fragmentation", 0) + rest
    return {category: found[category] for category in CATEGORIES if category in found}


def widest(rank: RankAnswer) -> int:
    """The widest of torch's three figures that the rank has: what the device must hold."""
    return next((rank.figures[name] for name in ("peak.device", "peak.reserved", "peak.allocated") if name in rank.figures), 0)
