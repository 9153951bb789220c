"""Micro-batches in flight: how many a rank of a pipeline keeps, chunk by chunk, while each kind of its passes runs.

The order of a rank's passes is that of the framework's own schedule (`passes.order`), and the counts follow from it:

- a chunk keeps the tensors of a micro-batch, its received input first, from the forward pass to the backward pass;
- where backward is split, the input gradient (I) frees what only it reads; the inputs and output gradients of linear layers *wait* for the weight
  gradient (W).

Why accumulating gradients over more micro-batches raises memory here, and not on one stage: rank i of p cannot begin its first backward pass before
the micro-batch has come back from the last stage. Meanwhile it runs p - i forward passes, if there are so many, and keeps them all. With fewer
micro-batches than stages each further one is one more to keep; from p on their number changes nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import le, mul, sub

from msgspec.structs import replace

from everybyte.basics.record import Record
from everybyte.job.words import Schedule
from everybyte.rules.parallel.schedule_orders import Kind, delay, is_split, order, warmup
from everybyte.rules.parallel.schedules import Plan

TWO_WAY: tuple[Schedule, ...] = ("zb-v", "dualpipe", "dualpipe-v")
"""Schedules whose passes are replayed one by one; the others have a closed form."""


class Flight(Record, frozen=True):
    """A pass runs; what the rank keeps of the micro-batches beside the one that passes."""

    kind: Kind
    chunk: int
    """The chunk through which it runs. A forward pass of the chunk with the head ends in the loss."""
    kept: tuple[int, ...]
    """Of each chunk, micro-batches between their forward and their backward pass."""
    waiting: tuple[int, ...]
    """Of each chunk, micro-batches between the gradient of the input and those of the weights."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Micro-batches of each chunk of which anything is alive, the one that passes included."""
        return tuple(k + w + (c == self.chunk) for c, (k, w) in enumerate(zip(self.kept, self.waiting, strict=True)))

    def weight(self, kept: Sequence[int], waiting: Sequence[int]) -> int:
        """Σ of sizes: `kept` a chunk and micro-batch, `waiting` likewise; the one that passes counts whole unless its input gradient is done."""
        passing = (waiting if self.kind == "W" else kept)[self.chunk]
        found: int = passing + sum(map(mul, self.kept, kept))
        return found + sum(map(mul, self.waiting, waiting)) if any(self.waiting) else found


def in_flight(plan: Plan, rank: int, kept: Sequence[int] | None = None, waiting: Sequence[int] | None = None) -> Flight:
    """The busiest pass of a rank, each chunk weighted by the bytes (or layers) that it keeps of a micro-batch, and of one that waits for W.

    Without sizes all chunks are alike, and a waiting micro-batch weighs as much as a kept one. Where another pass needs more beside it (the loss),
    compare all `flights`.
    """
    sizes = tuple(kept or (1,) * plan.chunks)
    return _busiest(_shortened(plan, rank), rank, sizes, tuple(waiting or sizes))


@lru_cache(maxsize=16384)
def _busiest(plan: Plan, rank: int, kept: tuple[int, ...], waiting: tuple[int, ...]) -> Flight:
    return max(_flights(plan, rank), key=lambda flight: flight.weight(kept, waiting))


def flights(plan: Plan, rank: int) -> tuple[Flight, ...]:
    """What is in flight while each kind of pass runs. Any sum of counts with sizes that are not negative is largest in one of these states."""
    return _flights(_shortened(plan, rank), rank)


@lru_cache(maxsize=16384)
def outdone(plan: Plan, kinds: tuple[Hashable, ...]) -> tuple[bool, ...]:
    """Of each rank, whether another that holds the same (its kind is equal) has at least as much in flight whatever passes: it then needs as much
    memory at every moment, and the rank cannot be the only worst one.

    Where backward passes are whole, a rank before it does: at each of its passes it has made as many forward passes more, as it runs further ahead.
    """
    if plan.schedule not in TWO_WAY and not is_split(plan):
        return tuple(kind in kinds[:rank] for rank, kind in enumerate(kinds))
    return covered(kinds, tuple(flights(plan, rank) for rank in range(len(kinds))))


@lru_cache(maxsize=16384)
def covered(kinds: tuple[Hashable, ...], in_flight: tuple[tuple[Flight, ...], ...]) -> tuple[bool, ...]:
    """The same of ranks for which these passes count: each of a rank has one of the other above it."""
    found: list[bool] = []
    highest: dict[Hashable, list[int]] = {}
    for rank, kind in enumerate(kinds):
        others = highest.setdefault(kind, [])
        is_covered = any(all(any(_covers(more, fewer) for more in in_flight[other]) for fewer in in_flight[rank]) for other in others)
        found.append(is_covered)
        if not is_covered:
            others.append(rank)
    return tuple(found)


def _covers(more: Flight, fewer: Flight) -> bool:
    return (more.kind, more.chunk) == (fewer.kind, fewer.chunk) and all(
        a >= b for a, b in zip(more.kept + more.waiting, fewer.kept + fewer.waiting, strict=True)
    )


@lru_cache(maxsize=16384)
def _flights(plan: Plan, rank: int) -> tuple[Flight, ...]:
    return tuple(_largest(_replayed(plan, rank) if plan.schedule in TWO_WAY else _at_breaks(plan, rank)))


def _largest(found: Iterable[Flight]) -> Iterator[Flight]:
    """Leaves out what is not above another state of the same pass in any count."""
    groups: dict[tuple[str, int], dict[tuple[int, ...], Flight]] = {}
    for flight in found:
        groups.setdefault((flight.kind, flight.chunk), {})[flight.kept + flight.waiting] = flight
    for group in groups.values():
        for counts, flight in group.items():
            if not any(other != counts and all(map(le, counts, other)) for other in group):
                yield flight


@lru_cache(maxsize=16384)
def _shortened(plan: Plan, rank: int) -> Plan:
    """The same plan with as few micro-batches as still show every state: a pipeline that is full repeats itself, group by group."""
    if plan.schedule in TWO_WAY:
        return replace(plan, microbatches=min(plan.microbatches, 4 * plan.pp + 2 + plan.microbatches % 2))
    apart = warmup(plan, rank) + delay(plan, rank)
    if plan.virtual == 1:  # one group, whose length costs nothing
        enough = min(plan.microbatches, apart + 2)
        return replace(plan, microbatches=enough, group=enough)
    spare = plan.microbatches // plan.group - -(-apart // (plan.virtual * plan.group)) - 2
    return replace(plan, microbatches=plan.microbatches - max(spare, 0) * plan.group)


def _replayed(plan: Plan, rank: int) -> Iterator[Flight]:
    """Every pass in program order."""
    kept, waiting = [0] * plan.chunks, [0] * plan.chunks
    for kind, chunk, _ in order(plan, rank):
        if kind in "BI":
            kept[chunk] -= 1
        elif kind == "W":
            waiting[chunk] -= 1
        yield Flight(kind, chunk, tuple(kept), tuple(waiting))
        if kind == "F":
            kept[chunk] += 1
        elif kind == "I":
            waiting[chunk] += 1


# -- closed form -------------------------------------------------------------------------------------------------------------
def _at_breaks(plan: Plan, rank: int) -> Iterator[Flight]:
    """Schedules that run forward `warmup` passes ahead of backward: at step k pass F(k), then B(k - warmup), or I(k - warmup) and W(k - warmup - delay).

    Between two steps at which one of them changes its chunk, all counts are linear in k, so that the ends of these stretches are enough.
    """
    ahead, split = warmup(plan, rank), is_split(plan)
    behind = ahead + delay(plan, rank)
    starts = _chunk_starts(plan)
    steps = {start + shift + side for start in starts for shift in {0, ahead, behind} for side in (-1, 0)}
    table, last = _Table(plan), plan.virtual - 1
    for step in sorted(steps):
        f, b, w = step, step - ahead, step - behind
        made, freed, written = (table.done(f), table.done(b)[::-1], table.done(w if split else b)[::-1])
        if 0 <= f < plan.passes:
            yield Flight("F", table.chunk(f), _less(made, freed), _less(freed, written))
            made = table.done(f + 1)
        if 0 <= b < plan.passes:
            freed = table.done(b + 1)[::-1]
            yield Flight("I" if split else "B", last - table.chunk(b), _less(made, freed), _less(table.done(b)[::-1], written))
        if split and 0 <= w < plan.passes:
            yield Flight("W", last - table.chunk(w), _less(made, freed), _less(freed, table.done(w + 1)[::-1]))


def _less(more: tuple[int, ...], fewer: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(sub, more, fewer))


def _chunk_starts(plan: Plan) -> list[int]:
    """Places in the table of forward passes where a chunk's turn begins, and the end of the table."""
    full, rest = divmod(plan.microbatches, plan.group)
    period = plan.virtual * plan.group
    turns = [group * period + chunk * plan.group for group in range(full) for chunk in range(plan.virtual)]
    return [*turns, *(full * period + chunk * rest for chunk in range(plan.virtual) if rest), plan.passes]


class _Table:
    """The table of forward passes (`passes.table`) without writing it out."""

    def __init__(self, plan: Plan) -> None:
        self.virtual, self.group, self.total = plan.virtual, plan.group, plan.passes
        self.full, self.rest = divmod(plan.microbatches, plan.group)
        self._done: dict[int, tuple[int, ...]] = {}

    def _split(self, place: int) -> tuple[int, int, int]:
        """(whole groups before the place, places into its own group, length of that group's turns)."""
        groups, inside = divmod(place, self.virtual * self.group)
        return (groups, inside, self.group) if groups < self.full else (self.full, place - self.full * self.virtual * self.group, max(self.rest, 1))

    def chunk(self, place: int) -> int:
        """The chunk of the pass at a place."""
        _, inside, length = self._split(place)
        return inside // length

    def done(self, place: int) -> tuple[int, ...]:
        """Passes of each chunk before a place."""
        place = min(max(place, 0), self.total)
        found = self._done.get(place)
        if found is None:
            groups, inside, length = self._split(place)
            before, (turn, rest) = groups * self.group, divmod(inside, length)  # chunks before the turn have run a whole group, those behind it nothing
            turns = (before + length,) * turn + (before + rest,) + (before,) * (self.virtual - turn - 1)
            found = self._done[place] = turns[: self.virtual]
        return found
