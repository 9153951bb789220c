"""What holds for the rows of every rank."""

from __future__ import annotations

from typing import Any

from arithmetic_of_rows import calculate

from everybyte import estimate, headline


def all_explained(job: dict[str, Any]) -> None:
    """Asserts that formulas give the bytes of their rows, rows of a phase add up to it, and no less is reserved than allocated."""
    found = estimate(job)
    for rank in found.ranks:
        for entry in rank.ledger:
            assert calculate(entry.formula, entry.symbols) == entry.bytes > 0, entry.id
        for phase in rank.phases:
            inside = sum(e.bytes for e in rank.ledger if phase.name in e.phases and e.category != "context" and not e.id.startswith("nccl"))
            assert inside >= phase.allocated
        assert rank.figures["static.allocated"] < rank.figures["peak.allocated"] <= rank.figures["peak.reserved"]
    assert headline(job)["peak.allocated"] == max(rank.figures["peak.allocated"] for rank in found.ranks)
