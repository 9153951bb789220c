"""FSDP2's allocations in program order, by CUDA stream.

A tensor belongs to the stream on which it is made, and its memory is used again on that stream alone. FSDP2 has three
(torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py): units are gathered into buffers of the copy-in stream, copied out into one tensor a
weight on the default stream, where gradients and the input of a reduce-scatter are too; the shared gradients are results of the
reduce-scatter stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from everybyte.basics.allocations import STREAM_BITS, Event
from everybyte.basics.units import ceil_div
from everybyte.layers.recording.size import elements
from everybyte.models.count import declared
from everybyte.rules.sharding.fsdp import Fsdp2
from everybyte.rules.sharding.fsdp_units import ROOT, gathered_bytes, padded_numel
from everybyte.rules.step.allocation_program import Program
from everybyte.rules.step.layout import ShardEvent
from everybyte.rules.step.training import Training

GATHER, REDUCE = 1, 2


class Piece(NamedTuple):
    """What one unit moves."""

    whole: tuple[int, ...]
    """Bytes of its gathered tensors, rows padded to a multiple of the ranks."""
    share: int
    """Bytes of this rank's part in the type in which it is gathered."""
    trained: int
    """Padded numbers that get a gradient."""
    own: int
    """Of these, this rank's."""


NOTHING = Piece((), 0, 0, 0)


class Fsdp2Program(Program):
    """Writes the events of a step whose units are gathered and freed as FSDP2 does."""

    def __init__(self, training: Training, layout: Fsdp2) -> None:
        super().__init__(training)
        self.layout = layout
        recipe = training.recipe
        self.casts = layout.on_host or (layout.stored is not None and layout.stored != recipe.setup.weights)
        self.reduce = layout.summed(recipe)
        self.pieces = self._pieces()
        self.order = [self._unit(part.index, copy) for part in self.parts for copy in range(part.copies)]
        self.whole: dict[str, list[int]] = {}
        self.buffers: dict[str, int] = {}
        """Gathered, not yet copied out, or in forward kept until the next unit is."""
        self.at = -1
        """Which layer runs."""
        self.reduced = 0
        """The input of the last reduce-scatter."""
        self.root_gradients: list[int] = []
        self.accumulated: dict[str, list[int]] = {}

    def _pieces(self) -> dict[str, Piece]:
        setup = self.training.recipe.setup
        found: dict[str, Piece] = {}
        for row in declared(self.training.network, setup):
            p, name = row.parameter, self.layout.units.of(row.part)
            if not self.layout.shards(p) or not p.dims:
                continue
            times = p.count * (row.copies if name == ROOT else 1)
            ways = self.layout.ways(p)
            numel = padded_numel(p, ways) if ways <= p.dims[0].size else elements(p.dims)[0]
            size, trained = gathered_bytes(p, setup, self.layout.packed_tensors, numel), numel * times * p.trainable
            before = found.get(name, NOTHING)
            found[name] = Piece(
                before.whole + (size,) * times, before.share + ceil_div(size, ways) * times, before.trained + trained, before.own + ceil_div(trained, ways)
            )
        return found

    def _unit(self, index: int, copy: int) -> str:
        """The unit of a copy of a segment."""
        name = self.layout.units.of(self.timeline.row[index].part)
        return name if name == ROOT or name in self.layout.units.apart else f"{name}/{index}/{copy}"

    def _part(self, unit: str) -> str:
        """The piece of the network that a unit is of."""
        _, _, place = unit.partition("/")
        return self.timeline.row[int(place.partition("/")[0])].part if place else unit

    def _piece(self, unit: str) -> Piece:
        return self.pieces.get(unit.partition("/")[0], NOTHING)

    def _on(self, stream: int, nbytes: int) -> Event:
        key, size = self._make(nbytes)
        return (stream << STREAM_BITS) + key, size

    # -- weights ----------------------------------------------------------------------------------------------------------------
    def _gather(self, unit: str) -> Iterator[Event]:
        """The all-gather: the rank's part is cast into one tensor, then copied into its place in the buffer."""
        piece = self._piece(unit)
        if not piece.whole or unit in self.whole or unit in self.buffers or self.layout.degree == 1:
            return
        cast = self._on(GATHER, piece.share)
        if self.casts:
            yield cast
        buffer = self._on(GATHER, sum(piece.whole))
        self.buffers[unit] = buffer[0]
        yield buffer
        if self.casts:
            yield cast[0], 0

    def _copy_out(self, unit: str) -> Iterator[Event]:
        made = []
        for size in self._piece(unit).whole:
            cast = self._make(size)
            if self.layout.degree == 1 and self.casts:
                yield cast
            event = self._make(size)
            made.append(event[0])
            yield event
            if self.layout.degree == 1 and self.casts:
                yield cast[0], 0
        self.whole[unit] = made

    def _free_buffers(self, units: list[str]) -> Iterator[Event]:
        yield from ((self.buffers.pop(unit), 0) for unit in units)

    def _reshard(self, unit: str) -> Iterator[Event]:
        yield from ((key, 0) for key in self.whole.pop(unit, ()))

    def _stays(self, unit: str) -> bool:
        """Whether a unit stays whole from forward to backward."""
        return not self.layout.reshards or unit == ROOT or unit in self.layout.kept_units or (self.layout.keeps_last and unit == self._last_block())

    def _last_block(self) -> str:
        return next((unit for unit in reversed(self.order) if "/" in unit), "")

    # -- the step ---------------------------------------------------------------------------------------------------------------
    def _beside(self, index: int, moment: ShardEvent) -> Iterator[Event]:
        if moment == "forward":
            yield from self._pre_forward()
        elif moment == "backward":
            yield from self._pre_backward()

    def _pre_forward(self) -> Iterator[Event]:
        self.at += 1
        if self.at == 0:
            yield from self._enter(ROOT)
        else:
            earlier = self.order[self.at - 1]
            if not self._stays(earlier) and earlier != self.order[self.at]:
                yield from self._reshard(earlier)
        yield from self._enter(self.order[self.at])

    def _enter(self, unit: str) -> Iterator[Event]:
        """Forward: the buffer of the last unit goes when the next one is copied out (wait_for_unshard holds it in a variable)."""
        if unit in self.whole:
            return
        earlier = list(self.buffers)
        yield from self._gather(unit)
        yield from self._copy_out(unit)
        yield from self._free_buffers(earlier)

    def _pre_backward(self) -> Iterator[Event]:
        if self.at == len(self.order) - 1:
            # forward ends: the last buffer goes with the root's hook
            yield from self._free_buffers(list(self.buffers))
            last = self.order[-1]
            if not self._stays(last):
                yield from self._reshard(last)
        unit = self.order[self.at]
        if unit not in self.whole:
            yield from self._gather(unit)
            yield from self._copy_out(unit)
            yield from self._free_buffers([unit] if unit in self.buffers else [])
        ahead = next((u for u in reversed(self.order[: self.at]) if u not in (ROOT, unit)), None)
        if ahead is not None:
            yield from self._gather(ahead)

    def _leave_gradients(self, index: int, made: list[int]) -> Iterator[Event]:
        unit = self.order[self.at]
        self.at -= 1
        if unit == ROOT:
            self.root_gradients += made
        else:
            yield from self._share(unit, made)

    def _share(self, unit: str, made: list[int]) -> Iterator[Event]:
        """A unit's backward is done: its weights go, then the input of the last reduce-scatter; its gradients are copied into a new one."""
        yield from self._reshard(unit)
        if not self.syncs and self.layout.whole(self._part(unit)):
            # added to what is there
            yield from ((key, 0) for key in made)
            return
        if self.reduced:
            yield self.reduced, 0
            self.reduced = 0
        trained = self._trained_numel(unit)
        if trained:
            event = self._make(self.reduce.nbytes(trained))
            self.reduced = event[0]
            yield event
        yield from ((key, 0) for key in (*made, *self.accumulated.pop(unit, ())))
        if not trained:
            return
        mine = ceil_div(trained * self._piece(unit).own, self._piece(unit).trained)
        share = self._on(REDUCE, self.reduce.nbytes(mine))
        yield share
        if self.layout.on_host:
            yield share[0], 0
            return
        stored = self.layout.shard(self.training.recipe)
        if self.training.recipe.gradients_live == "always" and not self.layout.whole(self._part(unit)):
            # added to what an earlier micro-batch left
            yield share[0], 0
        elif stored != self.reduce:
            own = self._on(REDUCE, stored.nbytes(mine))
            yield own
            yield share[0], 0
            self.gradients.append(own[0])
        else:
            self.gradients.append(share[0])

    def _trained_numel(self, unit: str) -> int:
        """Padded numbers of a unit that have a gradient: of adapters that no token used there is none."""
        name, _, place = unit.partition("/")
        if name == ROOT or not place:
            return self._piece(unit).trained
        return self.layout.made(self.timeline, int(place.partition("/")[0]))

    def _end_backward(self) -> Iterator[Event]:
        """Backward ends: the root's gradients are shared, and the last buffers go."""
        yield from self._free_buffers(list(self.buffers))
        yield from self._share(ROOT, self.root_gradients)
        self.root_gradients = []
        if self.reduced:
            yield self.reduced, 0
            self.reduced = 0
        for unit in list(self.whole):
            yield from self._reshard(unit)

    def make_gradients(self) -> Iterator[Event]:
        """What earlier micro-batches left: the rank's share, or under no_sync the whole gradients in the type of the sum."""
        stored = self.layout.shard(self.training.recipe)
        if self.gradients and not self.layout.unsharded:
            return
        yield from self.free_gradients()
        for unit in dict.fromkeys((ROOT, *self.order)):
            piece = self._piece(unit)
            if not piece.trained:
                continue
            if self.layout.whole(self._part(unit)):
                events = [self._make(self.reduce.nbytes(piece.trained))]
                self.accumulated[unit] = [key for key, _ in events]
            else:
                events = [self._on(REDUCE, stored.nbytes(piece.own))]
                self.gradients += [key for key, _ in events]
            yield from events
