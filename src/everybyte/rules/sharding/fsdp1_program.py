"""FSDP1's allocations in program order, by CUDA stream.

A unit is gathered into one flat tensor of the unshard stream, from a cast shard of the pre-unshard stream; its shared gradient is a result of the
post-backward stream (torch/distributed/fsdp/_runtime_utils.py _unshard, _reduce_grad). A flat tensor that is freed while the compute stream may
still read it can be used again when that stream has passed: the limiter of all-gathers waits for it when two more are on their way
(_limiter_utils.py _FreeEventQueue).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from everybyte.basics.allocations import STREAM_BITS, Event, finished, used_on
from everybyte.basics.units import ceil_div
from everybyte.rules.sharding.fsdp_units import ROOT
from everybyte.rules.step.allocation_program import Program
from everybyte.rules.step.layout import ShardEvent

if TYPE_CHECKING:
    from everybyte.rules.sharding.fsdp import Fsdp1
    from everybyte.rules.step.training import Training

CAST, GATHER, REDUCE = 1, 2, 3
IN_FLIGHT = 2
"""Freed flat tensors that wait for the compute stream."""


class Fsdp1Program(Program):
    """Writes the events of a step whose units are gathered and freed as FSDP1 does."""

    def __init__(self, training: Training, layout: Fsdp1) -> None:
        super().__init__(training)
        self.layout = layout
        self.order = [(part.index, copy) for part in self.parts for copy in range(part.copies)]
        self.at = -1
        """Which layer runs."""
        self.whole: dict[tuple[int, int], int] = {}
        """Gathered units by place in the order; the root's is (-1, 0)."""
        self.waiting: list[int] = []
        self.held: set[int] = set()
        self.root_gradients: list[int] = []
        self.accumulated: dict[tuple[int, int], list[int]] = {}
        """Whole gradients of earlier micro-batches, under no_sync."""

    def _on(self, stream: int, nbytes: int) -> Event:
        key, size = self._make(nbytes)
        return (stream << STREAM_BITS) + key, size

    # -- weights ----------------------------------------------------------------------------------------------------------------
    def _gather(self, place: tuple[int, int]) -> Iterator[Event]:
        unit = self.layout.root(self.timeline) if place[0] < 0 else self.layout.unit(self.timeline, place[0])
        if place in self.whole or not unit.gathered:
            return
        cast = self._on(CAST, self.layout.cast(self.timeline, unit) or 1)
        yield cast
        if len(self.waiting) >= IN_FLIGHT:
            yield finished(self.waiting.pop(0))
        event = self._on(GATHER, unit.gathered)
        self.whole[place] = event[0]
        yield event
        yield cast[0], 0

    def _reshard(self, place: tuple[int, int]) -> Iterator[Event]:
        """The unit is freed; its memory waits for the work that the compute stream has been given by now, which stands here as a stream of its own."""
        if place in self.whole:
            key = self.whole.pop(place)
            yield used_on(key, key)
            yield key, 0
            self.waiting.append(key)

    def _before(self, at: int) -> tuple[int, int] | None:
        """The unit that backward needs after the one at `at`."""
        return next((place for place in reversed(self.order[:at]) if self.layout.unit(self.timeline, place[0]).gathered), None)

    # -- the step ---------------------------------------------------------------------------------------------------------------
    def _beside(self, index: int, moment: ShardEvent) -> Iterator[Event]:
        if moment == "forward":
            yield from self._pre_forward()
        elif moment == "backward":
            yield from self._pre_backward()

    def _pre_forward(self) -> Iterator[Event]:
        self.at += 1
        if self.at == 0:
            yield from self._gather((-1, 0))
        elif not self.layout.gathers_once:
            yield from self._reshard(self.order[self.at - 1])
        yield from self._gather(self.order[self.at])

    def _pre_backward(self) -> Iterator[Event]:
        place = self.order[self.at]
        yield from self._gather(place)
        if self.layout.reruns:
            # the recomputed forward frees the unit, and backward gathers it once more
            yield from self._reshard(place)
            yield from self._gather(place)
        ahead = self._before(self.at)
        if self.layout.prefetches and ahead is not None:
            yield from self._gather(ahead)

    def _leave_gradients(self, index: int, made: list[int]) -> Iterator[Event]:
        place = self.order[self.at]
        self.at -= 1
        if self.layout.units.of(self.timeline.row[index].part) == ROOT:
            self.root_gradients += made
        else:
            yield from self._share(place, made, self.layout.unit(self.timeline, index).trained)

    def _share(self, place: tuple[int, int], made: list[int], trained: int) -> Iterator[Event]:
        """Gradients are joined, the unit is freed, this rank's share is made and cast to the type of the shard."""
        recipe, layout = self.training.recipe, self.layout
        kind, stored = layout.summed(recipe), layout.shard(recipe)
        if not trained or not made:
            self.gradients += made
            yield from self._reshard(place)
            return
        flat = self._make(kind.nbytes(trained))
        yield flat
        yield from ((key, 0) for key in made)
        yield from self._reshard(place)
        if not self.syncs:
            # added to what is there
            yield flat[0], 0
            return
        share = self._on(REDUCE, kind.nbytes(ceil_div(trained, layout.degree)))
        yield share
        yield flat[0], 0
        yield from ((key, 0) for key in self.accumulated.pop(place, ()))
        if (recipe.gradients_live == "always" and not layout.unsharded) or layout.on_host:
            yield share[0], 0
        elif stored != kind:
            own = self._on(REDUCE, stored.nbytes(ceil_div(trained, layout.degree)))
            yield own
            yield share[0], 0
            self.gradients.append(own[0])
        else:
            self.gradients.append(share[0])

    def make_gradients(self) -> Iterator[Event]:
        """What earlier micro-batches left: this rank's shares, or under no_sync the whole gradients of each unit."""
        if not self.layout.unsharded:
            yield from super().make_gradients()
            return
        kind = self.layout.summed(self.training.recipe)
        yield from self.free_gradients()
        for place in ((-1, 0), *self.order):
            unit = self.layout.root(self.timeline) if place[0] < 0 else self.layout.unit(self.timeline, place[0])
            if unit.trained:
                event = self._make(kind.nbytes(unit.trained))
                self.accumulated[place] = [event[0]]
                yield event

    def _holds(self, start: int, outgoing: int) -> None:
        if self.layout.holds_inputs and self.layout.units.of(self.timeline.row[self.order[self.at][0]].part) != ROOT:
            self.held |= {key for key in (start, outgoing) if key}

    def _end_backward(self) -> Iterator[Event]:
        """Backward ends: the root's gradients are shared, what hooks held goes, and nothing waits any more."""
        yield from self._share((-1, 0), self.root_gradients, self.layout.root(self.timeline).trained)
        self.root_gradients = []
        for place in list(self.whole):
            yield from self._reshard(place)
        yield from (finished(key) for key in self.waiting)
        self.waiting, self.at = [], -1

    def forward_backward(self) -> Iterator[Event]:
        """A micro-batch, with inputs and their gradients kept as long as hooks hold them. The shared gradients of the last step go as it begins."""
        if self.training.recipe.gradients_live == "backward":
            yield from self.free_gradients()
        kept: dict[int, None] = {}
        again: dict[int, int] = {}
        for key, size in super().forward_backward():
            if key in self.held and not size:
                kept[key] = None
                if key in again:
                    yield again.pop(key), 0
            elif size > 0 and key in kept:
                # made again by recomputation, while the first one is held
                again[key], _ = self._make(size)
                yield again[key], size
            else:
                yield key, size
        yield from ((key, 0) for key in kept)
        self.held = set()
