"""The rows of a ledger summed for the eye: by category and place at the peak, and the steps from allocated to device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from everybyte.ledger.answer import Answer, RankAnswer
from everybyte.ledger.by_category import widest
from everybyte.ledger.entry import CATEGORIES, OUTSIDE_ALLOCATOR, Category, Entry
from everybyte.ledger.places import place, without_numbers
from everybyte.report.words import amount, short_size


class Group(NamedTuple):
    """A category with its entries, the largest first."""

    category: Category
    bytes: int
    entries: tuple[Entry, ...]


def by_category(rank: RankAnswer) -> list[Group]:
    """What lives inside the allocator in the peak phase, by category, the largest first. The groups add up to the phase's total."""
    living = [e for e in rank.ledger if rank.peak_phase in e.phases and e.category not in OUTSIDE_ALLOCATOR and e.bytes]
    groups = []
    for category in CATEGORIES:
        entries = sorted((e for e in living if e.category == category), key=lambda e: -e.bytes)
        if entries:
            groups.append(Group(category, sum(e.bytes for e in entries), tuple(entries)))
    return sorted(groups, key=lambda group: -group.bytes)


def needed(answer: Answer) -> tuple[str | None, int]:
    """(figure, bytes) that the verdict rests on: what the device shows, else the narrower figure that is known."""
    figures = answer.figures
    if answer.hardware is not None and answer.headroom is not None:
        amount = answer.hardware.capacity - answer.headroom
        return next((name for name, value in figures.items() if value == amount and name.startswith("peak.")), None), amount
    name = next((name for name in ("peak.device", "peak.reserved", "peak.allocated") if name in figures), None)
    return name, (answer.size(name) or 0) if name else 0


def rank_needs(answer: Answer, rank: RankAnswer) -> int:
    """Bytes that one kind of rank needs of its device; of the one that needs most, what the verdict rests on."""
    return needed(answer)[1] if rank is answer.worst else widest(rank)


def outcome(answer: Answer, rank: RankAnswer | None = None, unit: str = "GiB") -> str:
    """The verdict in a line: `needs 21.4 GiB of 23.6 GiB: fits, 2.2 GiB left`. Without a GPU only what is needed."""
    bytes_needed = needed(answer)[1] if rank is None else rank_needs(answer, rank)
    if answer.hardware is None:
        return f"needs {short_size(bytes_needed, unit)}"
    capacity = answer.hardware.capacity
    return f"needs {short_size(bytes_needed, unit)} of {amount(capacity, unit, 1)} {unit}: {judged(answer, rank, unit)}"


def judged(answer: Answer, rank: RankAnswer | None = None, unit: str = "GiB") -> str:
    """`fits, 2.2 GiB left`, `close: ...`, `does not fit by 3.1 GiB`, `does not start: ...`."""
    capacity = answer.hardware.capacity if answer.hardware else 0
    left = capacity - (needed(answer)[1] if rank is None else rank_needs(answer, rank))
    whole = rank is None or rank is answer.worst
    if whole and answer.verdict == "close":
        room = f"{short_size(left, unit)} left" if left >= 0 else f"{short_size(-left, unit)} too much"
        return f"close, {room}; about {100 * (answer.chance or 0):.0f} % of such runs fit"
    if left < 0:
        return f"does not fit by {short_size(-left, unit)}"
    if answer.fits or not whole:
        return f"fits, {short_size(left, unit)} left"
    return f"does not start: {why_refused(answer)}"


def why_refused(answer: Answer) -> str:
    """The reason in a line: the engine's, or what is short beside the device."""
    reason = answer.refusals[0] if answer.refusals else next(iter(answer.warnings), "see the warnings")
    return reason.partition("refuses to start: ")[2] or reason


def places(entries: Iterable[Entry], *, merge: bool = False) -> list[tuple[str, int]]:
    """(place, bytes), the largest first. The same module in several runs of layers (a hybrid's) is one place: `layers/mlp`; with `merge` in one
    run as well."""
    runs: dict[str, list[Entry]] = {}
    for entry in entries:
        runs.setdefault(without_numbers(place(entry)), []).append(entry)
    found = [(name if merge or len(members) > 1 else place(members[0]), sum(e.bytes for e in members)) for name, members in runs.items()]
    return sorted(found, key=lambda row: -row[1])
