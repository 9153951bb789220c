"""What a file says of memory, in a form that any two files can be compared in: rows at the peak where it knows them, figures where it knows those alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from everybyte.basics.record import Record
from everybyte.ledger.answer import Answer, RankAnswer
from everybyte.ledger.entry import OUTSIDE_ALLOCATOR, Category, Phase
from everybyte.ledger.places import layers_of, place, without_numbers
from everybyte.measure.profiles.read import Profile
from everybyte.measure.snapshots.analysis import place_said
from everybyte.measure.snapshots.categories import Sorter
from everybyte.measure.snapshots.timeline import History, Life

Kind = Literal["estimate", "trace", "snapshot", "record", "log", "profile"]
Detail = Literal["place", "category", "figure"]
"""How finely a file tells where bytes are."""


class Key(NamedTuple):
    """What a row is called on both sides; the place is empty where a file knows categories alone."""

    category: Category
    place: str


class Amount(NamedTuple):
    """Bytes of a row, and of how many layers (of a snapshot without places: blocks) they are."""

    bytes: int
    pieces: int


class Side(Record, frozen=True, eq=False):
    """One side of a comparison."""

    kind: Kind
    detail: Detail
    rows: Mapping[Key, Amount]
    """What the allocator holds at the highest instant."""
    elsewhere: Mapping[Key, tuple[Phase, ...]]
    """Rows that live at other instants, with the phases where they are known."""
    figures: Mapping[str, float]
    """By the contract's names."""
    job: Mapping[str, Any] | None = None
    """The job, in the contract's form, where the file has one."""
    silent: frozenset[Category] = frozenset()
    """Categories of which the file says nothing though they may be there."""

    @property
    def total(self) -> int:
        """Bytes at the highest instant: what was allocated, or where only wider figures are known the narrowest of those."""
        known = next(
            (self.figures[name] for name in ("peak.allocated", "peak.reserved", "process.used", "peak.device", "device.used") if name in self.figures), None
        )
        return sum(row.bytes for row in self.rows.values()) if known is None else int(known)

    def by_category(self) -> dict[Key, Amount]:
        """The rows without their places."""
        found: dict[Key, Amount] = {}
        for key, amount in self.rows.items():
            old = found.get(Key(key.category, ""), Amount(0, 0))
            found[Key(key.category, "")] = Amount(old.bytes + amount.bytes, 1)
        return found


def side_of_rank(answer: Answer, rank: RankAnswer) -> Side:
    """A kind of rank of an answer."""
    rows: dict[Key, Amount] = {}
    elsewhere: dict[Key, tuple[Phase, ...]] = {}
    for entry in rank.ledger:
        name = place(entry)
        key = Key(entry.category, without_numbers(name))
        if rank.peak_phase not in entry.phases:
            elsewhere[key] = entry.phases
        elif entry.category not in OUTSIDE_ALLOCATOR and entry.bytes:
            old = rows.get(key, Amount(0, 0))
            rows[key] = Amount(old.bytes + entry.bytes, old.pieces + layers_of(name))
    job = answer.job if "model" in answer.job else None
    figures = {**answer.figures, **rank.figures} if rank is answer.worst else dict(rank.figures)
    return Side("estimate" if answer.range or "trace" not in answer.job else "trace", "place", rows, elsewhere, figures, job)


def side_of_history(history: History) -> Side:
    """A device of a memory snapshot. One that a trace wrote names places; of another the stacks tell categories.
    A trace has no workspaces of cuBLAS, which takes them inside its library."""
    sorter = Sorter(history)
    peak = history.at(history.peak_at) if history.peak_at >= 0 else list(history.lives)
    has_places = any(place_said(life.frames) for life in peak)
    rows = _rows(peak, sorter, has_places=has_places)
    elsewhere: dict[Key, tuple[Phase, ...]] = dict.fromkeys(_rows(history.lives, sorter, has_places=has_places).keys() - rows.keys(), ())
    figures = {"peak.allocated": history.allocated_peak, "peak.reserved": history.reserved_peak}
    silent: frozenset[Category] = frozenset({"workspace"}) if has_places else frozenset()
    return Side("snapshot", "place" if has_places else "category", rows, elsewhere, figures, silent=silent)


def _rows(lives: Iterable[Life], sorter: Sorter, *, has_places: bool) -> dict[Key, Amount]:
    sizes: dict[Key, int] = defaultdict(int)
    pieces: dict[Key, set[Any]] = defaultdict(set)
    for life in lives:
        name = (place_said(life.frames) or "") if has_places else ""
        key = Key(sorter.category(life), without_numbers(name))
        sizes[key] += life.size
        pieces[key].add(name if has_places else id(life))
    return {key: Amount(size, len(pieces[key])) for key, size in sizes.items()}


def side_of_profile(profile: Profile) -> Side:
    """A device of a profile: by category where it says so, else what was allocated and reserved."""
    figures = {"peak.allocated": profile.allocated_peak} | ({} if profile.reserved_peak is None else {"peak.reserved": profile.reserved_peak})
    rows = {Key(category, ""): Amount(size, 1) for category, size in profile.at_peak.items()}
    return Side("profile", "category" if rows else "figure", rows, {}, figures)


def side_of_figures(kind: Kind, figures: Mapping[str, float]) -> Side:
    """What a log or a record states: figures alone."""
    return Side(kind, "figure", {}, {}, figures)
