"""A training step as a row of allocations and frees in program order, for an allocator to replay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from everybyte.layers.replay import Event as Change
from everybyte.layers.size import Point
from everybyte.layers.tape import Storage
from everybyte.models.count import declared
from everybyte.rules.overhead import cublas_workspace
from everybyte.rules.static import shape, tensor_bytes, trained
from everybyte.rules.step import Segment

if TYPE_CHECKING:
    from everybyte.rules.training import Training

Event = tuple[int, int]
"""(key, bytes): bytes above zero allocate under the key, zero frees it."""


class Script:
    """Writes the events of loading, of steps and of the optimizer, with one key for each living storage."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.course = training.course
        self.next_key = 0
        self.gradients: list[int] = []
        self.waiting_handles = training.recipe.handles
        """cuBLAS handles without a workspace yet: forward's thread asks at its first product, autograd's at its own."""

    def _make(self, nbytes: int) -> Event:
        self.next_key += 1
        return self.next_key, nbytes

    def load(self) -> Iterator[Event]:
        """The weights, one tensor after the other, workspaces and whatever lives from the start."""
        setup = self.training.recipe.setup
        for row in declared(self.training.network, setup):
            size = tensor_bytes(row.parameter, setup)
            for _ in range(row.copies * row.parameter.count):
                yield self._make(size)
        for line in self.training.static():
            if line.category in ("input", "unknown", "temporary"):
                yield self._make(line.bytes)

    def _workspace(self, handles_left: int) -> Iterator[Event]:
        """The workspace of a cuBLAS handle that multiplies for the first time. It stays, in the middle of whatever is cached then."""
        if self.waiting_handles > handles_left:
            self.waiting_handles = handles_left
            yield self._make(cublas_workspace(self.training.compute_capability))

    def states(self) -> Iterator[Event]:
        """Optimizer states and master copies, tensor by tensor, made in the first step."""
        recipe = self.training.recipe
        for row in declared(self.training.network, recipe.setup):
            p = row.parameter
            if not p.trainable or p.buffer:
                continue
            one = p.numel // p.count
            state = recipe.optimizer.state_bytes(shape(p), p.dtype)
            for _ in range(row.copies * p.count):
                # two moments are two tensors
                yield self._make(state // 2)
                yield self._make(state - state // 2)
                if recipe.optimizer.master is not None:
                    yield self._make(recipe.optimizer.master.nbytes(one))

    def step_temporaries(self) -> Iterator[Event]:
        """Temporaries of the step, freed together: a multi-tensor step makes one beside each trained tensor, a loop one for the largest."""
        recipe = self.training.recipe
        total = sum(line.bytes for line in self.training.step_temporaries())
        if not total:
            return
        made = [self._make(total)]
        if recipe.optimizer.impl == "foreach":
            scale = total / trained(self.training.network, recipe.setup, recipe.gradient, recipe.stepped).weight_bytes
            sizes = (
                (row.copies * p.count, int(scale * (recipe.stepped or p.dtype).nbytes(p.numel // p.count)))
                for row in declared(self.training.network, recipe.setup)
                if (p := row.parameter).trainable and not p.buffer
            )
            made = [self._make(size) for copies, size in sizes for _ in range(copies)]
        yield from made
        yield from ((key, 0) for key, _ in made)

    def forward_backward(self) -> Iterator[Event]:
        """Forward and backward of one micro-batch, and the freeing of its gradients after the step."""
        course = self.course
        stack: list[tuple[Segment, dict[Storage, int]]] = []
        leaving: list[tuple[Segment, dict[Storage, int]]] = []
        flowing: int | None = None
        for segment in course.row:
            point = course.points[segment.tower]
            for _ in range(segment.copies):
                keys: dict[Storage, int] = {}
                if flowing is not None:
                    keys[segment.tally.start] = flowing
                yield from self._play(segment.tally.forward_events, keys, point, (segment.tally.forward_gemm, self.training.recipe.handles - 1))
                flowing = keys.get(segment.tally.end)
                stack.append((segment, keys))
                if segment.offloaded:
                    leaving.append((segment, keys))
                    if len(leaving) > (self.training.recipe.recompute.in_flight or 0):
                        yield from self._offload(*leaving.pop(0))
        for segment, keys in leaving:
            yield from self._offload(segment, keys)
        if flowing is not None:
            yield flowing, 0
        cached = [keys.pop(s) for segment, keys in stack for s in segment.tally.cached if s in keys]
        yield from ((key, 0) for key in cached)
        gradient: int | None = None
        while stack:
            segment, keys = stack.pop()
            if gradient is not None:
                if segment.tally.incoming is None:
                    yield gradient, 0
                else:
                    keys[segment.tally.incoming] = gradient
            yield from self._play(segment.tally.backward_events, keys, course.points[segment.tower], (segment.tally.backward_gemm, 0))
            gradient = keys.get(segment.tally.outgoing) if segment.tally.outgoing is not None else None
        if gradient is not None:
            yield gradient, 0

    @staticmethod
    def _offload(segment: Segment, keys: dict[Storage, int]) -> Iterator[Event]:
        """What a layer keeps leaves the device; backward makes it anew."""
        yield from ((keys.pop(storage), 0) for storage in segment.tally.kept if storage in keys)

    def make_gradients(self) -> Iterator[Event]:
        """Gradients of all trained tensors, where an earlier micro-batch made them; they are there once."""
        if self.gradients:
            return
        recipe = self.training.recipe
        for row in declared(self.training.network, recipe.setup):
            p = row.parameter
            if p.trainable and not p.buffer:
                for _ in range(row.copies * p.count):
                    key, size = self._make((recipe.gradient or p.dtype).nbytes(p.numel // p.count))
                    self.gradients.append(key)
                    yield key, size

    def free_gradients(self) -> Iterator[Event]:
        """zero_grad(set_to_none=True)."""
        yield from ((key, 0) for key in self.gradients)
        self.gradients = []

    def _play(self, events: tuple[Change, ...], keys: dict[Storage, int], point: Point, product: tuple[int, int]) -> Iterator[Event]:
        first_product, handles_left = product
        for index, event in enumerate(events):
            if index == first_product:
                yield from self._workspace(handles_left)
            storage = event.storage
            if event.made:
                if storage not in keys:
                    key, size = self._make(storage.size.at(point))
                    keys[storage] = key
                    yield key, size
                    if storage.role == "gradient":
                        self.gradients.append(key)
            elif storage in keys:
                yield keys.pop(storage), 0


def script(training: Training, steps: int = 2) -> Iterator[Event]:
    """Loading and `steps` whole steps; the first makes the optimizer's states."""
    writer = Script(training)
    yield from writer.load()
    for index in range(steps):
        if training.recipe.gradients_live == "always":
            yield from writer.make_gradients()
        yield from writer.forward_backward()
        if index == 0:
            yield from writer.states()
        yield from writer.step_temporaries()
        if not training.recipe.gradients_between:
            yield from writer.free_gradients()
