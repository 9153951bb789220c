"""The instants of a layer that may be the highest of a step, at one batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from everybyte.basics.record import Record
from everybyte.layers.recording.replay import Instant, Tally
from everybyte.layers.recording.size import Batch, Point, Size
from everybyte.layers.recording.tape import Storage
from everybyte.rules.step.layout import ShardEvent

Candidate = tuple[ShardEvent, int, Instant]
"""A moment of a layer, the bytes of the step's own tensors that live in it, and which they are."""


class Measured(Record, frozen=True):
    """Bytes of a layer for one batch: what it keeps, and its highest instants."""

    kept: int
    cached: int
    lingering: int
    gradients: int
    """Those of its weights, which are the same for all batches."""
    forward: tuple[Candidate, ...]
    backward: tuple[Candidate, ...]


@lru_cache(maxsize=65536)
def measured(tally: Tally, batch: Batch, *, by_unit: bool, reentrant: bool) -> Measured:
    """A layer at a batch. `by_unit`: its weights are gathered before it runs, and its gradients shared behind it."""
    point = point_of(batch)

    def candidates(highest: tuple[Instant, ...], others: Iterable[tuple[ShardEvent, Instant]], moment: ShardEvent) -> Iterator[Candidate]:
        if highest:
            size, instant = max(((i.size.at(point), i) for i in highest), key=lambda pair: pair[0])
            yield moment, size, instant
            yield from ((other, i.size.at(point), i) for other, i in (others if by_unit else ()))

    return Measured(
        tally.kept_size.at(point), tally.cached_size.at(point), tally.lingering_size.at(point), tally.weight_gradients.at(point),
        tuple(candidates(tally.forward, _before(tally), "forward")), tuple(candidates(tally.backward, _around(tally, reentrant=reentrant), "backward")),
    )  # fmt: skip


@lru_cache(maxsize=4096)
def point_of(batch: Batch) -> Point:
    """The values of axis products for a batch."""
    return Point(batch)


@lru_cache(maxsize=4096)
def _before(tally: Tally) -> tuple[tuple[ShardEvent, Instant], ...]:
    """Before a layer runs, while its weights are gathered: its input is there."""
    return (("gather", _instant(() if tally.start.persistent else (tally.start,))),)


@lru_cache(maxsize=4096)
def _around(tally: Tally, *, reentrant: bool) -> tuple[tuple[ShardEvent, Instant], ...]:
    """Before a layer goes back, while its weights are gathered again, and when it has gone back, while its gradients are shared. What is there when
    backward is done is the gradient of its input; a reentrant CheckpointFunction.backward still has its input, its result and the result's gradient."""
    again = _instant((*tally.kept, tally.incoming) if tally.incoming is not None else tally.kept)
    if not tally.gradients:
        return (("regather", again),)
    own = (tally.start, tally.end, tally.incoming) if reentrant and tally.kept == (tally.start,) else ()
    returned = (s for s in (*own, tally.outgoing) if s is not None and not s.persistent)
    return ("regather", again), ("reduce", _instant((*tally.gradients, *returned)))


def _instant(held: Iterable[Storage]) -> Instant:
    storages = tuple(held)
    return Instant(Size.total(s.size for s in storages), storages)
