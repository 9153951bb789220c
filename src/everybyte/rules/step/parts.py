"""The segments of a step as rows of allocations and frees, with the storages of each numbered.

Which storage comes when is the same for every batch, but for those that are empty: it is worked out once for a layer, and a batch puts its sizes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from everybyte.basics.record import Record
from everybyte.layers.recording.replay import Event as Change
from everybyte.layers.recording.replay import Tally
from everybyte.layers.recording.size import Monomial, Point, Size
from everybyte.layers.recording.tape import Storage
from everybyte.rules.step.segments import Segment

Rows = tuple[tuple[int, int], ...]
"""(slot, place of its size) of what is made; the place is FREED for what is freed."""
FREED = -1
"""The last of a list of sizes, which is 0."""


class Part(Record, frozen=True):
    """One segment with its storages numbered and its sizes worked out; -1 where there is no such storage."""

    copies: int
    slots: int
    forward: list[tuple[int, int]]
    backward: list[tuple[int, int]]
    forward_product: int
    backward_product: int
    start: int
    end: int
    incoming: int
    incoming_bytes: int
    outgoing: int
    cached: tuple[int, ...]
    gradients: tuple[int, ...]
    keeps_end: bool
    """Its output is among what it keeps for backward."""
    offloaded: tuple[tuple[int, int], ...]
    """What waits in host memory: slots and bytes."""
    lingering: tuple[int, ...]
    """What backward does not free."""
    passed: tuple[tuple[str, int], ...]
    """Gradients of what another part of the network made."""
    kept: tuple[int, ...]
    starts_anew: bool
    """It is not given what the part before it made, but ids or images."""
    tower: str
    index: int
    """Of the segment."""


def parts_of(row: Sequence[Segment], points: Mapping[str, Point]) -> list[Part]:
    """The segments of a row. Layers that take turns are worked out once for each kind."""
    found: dict[tuple[int, str, bool, bool], Part] = {}
    parts = []
    for index, segment in enumerate(row):
        kind = (id(segment.tally), segment.tower, index > 0, segment.offloaded)
        if kind not in found:
            found[kind] = _part(segment, points[segment.tower], index)
        parts.append(replace(found[kind], copies=segment.copies, index=index))
    return parts


class _Sizes(NamedTuple):
    """The different sizes of a layer's storages."""

    sizes: tuple[Size, ...]
    place: dict[Storage, int]
    """Storage -> place of its size."""


class _Numbered(Record, frozen=True):
    """A segment whose storages are numbered, for all batches for which the same ones are empty."""

    slots: int
    forward: Rows
    backward: Rows
    forward_product: int
    backward_product: int
    start: int
    end: int
    incoming: int
    outgoing: int
    cached: tuple[int, ...]
    gradients: tuple[int, ...]
    kept_slots: Rows
    """Everything that it keeps."""
    kept: tuple[int, ...]
    """What is left of that when forward is done."""
    lingering: tuple[int, ...]
    passed: tuple[tuple[str, int], ...]


@lru_cache(maxsize=4096)
def _sizes(tally: Tally) -> _Sizes:
    """Sizes that are equal for every batch stand once."""
    places: dict[frozenset[tuple[Monomial, int]], int] = {}
    sizes: list[Size] = []
    place: dict[Storage, int] = {}
    storages = [event.storage for event in (*tally.forward_events, *tally.backward_events) if event.made]
    for storage in (*storages, *tally.kept, *([tally.incoming] if tally.incoming is not None else [])):
        key = frozenset(storage.size.terms.items())
        if key not in places:
            places[key] = len(sizes)
            sizes.append(storage.size)
        place[storage] = places[key]
    return _Sizes(tuple(sizes), place)


@lru_cache(maxsize=4096)
def _numbered(tally: Tally, has_input: bool, empty: frozenset[int]) -> _Numbered:
    """Numbers the storages of a layer. Its input and the gradient of its output exist already, but for the first input. `empty`: sizes that are 0."""
    numbering = _Numbering(_sizes(tally), empty)
    alive = numbering.alive
    if has_input:
        alive[tally.start] = None
    forward, forward_product = numbering.rows(tally.forward_events, tally.forward_gemm)
    end = numbering.slot(tally.end) if tally.end in alive else -1
    cached = tuple(numbering.slot(s) for s in tally.cached if s in alive)
    for storage in {tally.end, *tally.cached} - set(tally.kept):
        alive.pop(storage, None)
    kept = tuple(numbering.slot(s) for s in tally.kept if s in alive)
    if tally.incoming is not None:
        alive[tally.incoming] = None
    backward, backward_product = numbering.rows(tally.backward_events, tally.backward_gemm)
    return _Numbered(
        forward=forward,
        backward=backward,
        forward_product=forward_product,
        backward_product=backward_product,
        outgoing=numbering.slot(tally.outgoing) if tally.outgoing in alive else -1,
        gradients=tuple(numbering.slot(s) for s in alive if s.role == "gradient"),
        start=numbering.slot(tally.start),
        end=end,
        incoming=numbering.slot(tally.incoming),
        cached=cached,
        kept_slots=tuple((numbering.slot(s), numbering.sizes.place[s]) for s in tally.kept),
        kept=kept,
        lingering=tuple(numbering.slot(s) for s in tally.lingering),
        passed=tuple((s.what, numbering.slot(s)) for s in tally.passed if s in alive),
        slots=len(numbering.slots),
    )


class _Numbering:
    """Gives the storages of a segment their slots and turns its events into rows."""

    def __init__(self, sizes: _Sizes, empty: frozenset[int]) -> None:
        self.sizes, self.empty = sizes, empty
        self.slots: dict[Storage, int] = {}
        self.alive: dict[Storage, None] = {}

    def slot(self, storage: Storage | None) -> int:
        """The number of a storage; -1 for none."""
        return -1 if storage is None else self.slots.setdefault(storage, len(self.slots))

    def rows(self, events: tuple[Change, ...], product: int) -> tuple[Rows, int]:
        """The events without those of storages that exist already or are empty, and where among them the first product runs."""
        out: list[tuple[int, int]] = []
        at = -1
        for index, (made, storage) in enumerate((e.made, e.storage) for e in events):
            if index == product:
                at = len(out)
            if made == (storage in self.alive):
                continue
            if not made:
                del self.alive[storage]
                out.append((self.slot(storage), FREED))
            elif (place := self.sizes.place[storage]) not in self.empty:
                self.alive[storage] = None
                out.append((self.slot(storage), place))
        return tuple(out), at


def _part(segment: Segment, point: Point, index: int) -> Part:
    """A segment at a batch."""
    tally = segment.tally
    sizes = _sizes(tally)
    values = [size.at(point) for size in sizes.sizes]
    numbered = _numbered(tally, index > 0, frozenset(place for place, value in enumerate(values) if not value))
    values.append(0)
    return Part(
        copies=segment.copies,
        slots=numbered.slots,
        forward=[(slot, values[place]) for slot, place in numbered.forward],
        backward=[(slot, values[place]) for slot, place in numbered.backward],
        forward_product=numbered.forward_product,
        backward_product=numbered.backward_product,
        start=numbered.start,
        end=numbered.end,
        incoming=numbered.incoming,
        incoming_bytes=0 if tally.incoming is None else values[sizes.place[tally.incoming]],
        outgoing=numbered.outgoing,
        cached=numbered.cached,
        gradients=numbered.gradients,
        keeps_end=tally.end in tally.kept,
        offloaded=tuple((slot, values[place]) for slot, place in numbered.kept_slots) if segment.offloaded else (),
        lingering=numbered.lingering,
        passed=numbered.passed,
        kept=numbered.kept,
        starts_anew=tally.start.persistent and not tally.start.outside,
        tower=segment.tower,
        index=index,
    )
