"""A training step as a row of allocations and frees in program order, for an allocator to replay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from everybyte.basics.allocations import EMPTY_CACHE, Event
from everybyte.basics.units import MiB, round_up
from everybyte.layers.recording.tape import Parameter
from everybyte.ledger.build import Line
from everybyte.rules.accounting.overhead import cublas_workspace
from everybyte.rules.step.layout import ShardEvent
from everybyte.rules.step.parts import Part as _Part
from everybyte.rules.step.parts import parts_of as _parts
from everybyte.rules.step.persistent_state import shape, tensor_bytes

if TYPE_CHECKING:
    from everybyte.rules.step.training import Training

BLOCK = 512
"""Blocks of the caching allocator are multiples of this: what lives from step to step is counted so (rules.static)."""
PASSING = "gathered/"
"""Ids of what is made anew for every layer, though it has the same size in the next."""


class Program:
    """Writes the events of loading, of steps and of the optimizer, with one key for each living storage."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.timeline = training.timeline
        self.tensors = training.layout.tensors(training.network, training.recipe.setup)
        self.next_key = 0
        self.gradients: list[int] = []
        self.unaccumulated: list[int] = []
        self.passed: dict[str, int] = {}
        """Gradients of what another part of the network made: those of later layers are added to the first."""
        self.outlived: list[int] = []
        """What the graph of the last micro-batch still holds."""
        self.beside: dict[str, tuple[int, int]] = {}
        """What the layout has beside the layer that runs: id -> (key, bytes)."""
        self.syncs = True
        """Whether the ranks share gradients in this micro-batch's backward; not under no_sync."""
        self.waiting_handles = training.recipe.handles
        """cuBLAS handles without a workspace yet: forward's thread asks at its first product, autograd's at its own."""
        self.parts = _parts(self.timeline.row, self.timeline.points)

    def _make(self, nbytes: int) -> Event:
        self.next_key += 1
        return self.next_key, nbytes

    def load(self) -> Iterator[Event]:
        """The weights, one tensor after the other, workspaces and whatever lives from the start."""
        setup = self.training.recipe.setup
        for parameter in self.tensors:
            yield self._make(tensor_bytes(parameter, setup))
        for line in self._from_the_start():
            yield self._make(line.bytes)
        for segment, micro_batches in zip(self.timeline.row, self.timeline.waiting, strict=True):
            point = self.timeline.points[segment.tower]
            for _ in range(micro_batches * segment.copies):
                yield from (self._make(s.size.at(point)) for s in segment.tally.kept)

    def _from_the_start(self) -> list[Line]:
        """What lives all the time beside weights, states and workspaces."""
        training = self.training
        lines = (*training.layout.buffers(training.network, training.recipe), *training.inputs(), *training.extra)
        return [line for line in lines if line.bytes]

    def _workspace(self, handles_left: int) -> Iterator[Event]:
        """The workspace of a cuBLAS handle that multiplies for the first time. It stays, in the middle of whatever is cached then."""
        if self.waiting_handles > handles_left:
            self.waiting_handles = handles_left
            yield self._make(cublas_workspace(self.training.compute_capability))

    def workspaces(self) -> Iterator[Event]:
        """Those of all cuBLAS handles."""
        for left in range(self.waiting_handles - 1, -1, -1):
            yield from self._workspace(left)

    def states(self) -> Iterator[Event]:
        """Optimizer states and master copies, tensor by tensor, made in the first step."""
        recipe = self.training.recipe
        for p in self._trained():
            master = (recipe.optimizer.master.nbytes(p.numel // p.count),) if recipe.optimizer.master is not None else ()
            for size in (*recipe.optimizer.state_tensors(shape(p), p.dtype, p.name), *master):
                yield self._make(round_up(size, BLOCK))

    def leaves_large_tensors(self) -> bool:
        """Whether a step leaves a state, a gradient or a graph behind that belongs to the pool of large tensors (above 1 MiB)."""
        recipe = self.training.recipe
        plan = recipe.optimizer
        for p in set(self._trained()):
            kind = plan.master or recipe.gradient or p.dtype
            if max((*plan.state_tensors(shape(p), p.dtype, p.name), kind.nbytes(p.numel // p.count))) > MiB:
                return True
        return recipe.graph_outlives

    def _trained(self) -> list[Parameter]:
        """The trained tensors in the order of the modules."""
        training = self.training
        return [p for p in training.layout.stepped_tensors(training.network, training.recipe.setup) if p.trainable and not p.buffer]

    def step_temporaries(self) -> Iterator[Event]:
        """Temporaries of the step, freed together: a multi-tensor step makes one beside each trained tensor, a loop one for the largest."""
        recipe = self.training.recipe
        total = sum(line.bytes for line in self.training.step_temporaries())
        if not total:
            return
        made = [self._make(total)]
        if recipe.optimizer.impl == "foreach":
            scale = total / self.training.layout.trained(self.training.network, recipe.setup, recipe.gradient, recipe.stepped).weight_bytes
            kinds = ((recipe.stepped or p.dtype, p.numel // p.count) for p in self._trained())
            made = [self._make(int(scale * kind.nbytes(numel))) for kind, numel in kinds]
        yield from made
        yield from ((key, 0) for key, _ in made)

    def forward_backward(self) -> Iterator[Event]:
        """Forward and backward of one micro-batch. Gradients of weights stay; hidden states and their gradients are handed on from layer to layer."""
        done: list[tuple[_Part, list[int]]] = []
        yield from self._passes(within=False)
        yield from self._forward(done)
        yield from self._free_cached(done[:-1])
        yield from self._drop_passing()
        yield from self._passes(within=True)
        yield from self._free_cached(done[-1:])
        yield from self._backward(done)
        yield from self._end_backward()
        if not self.timeline.recipe.graph_outlives:
            yield from self._free_outlived()

    def load_companions(self) -> Iterator[Event]:
        """Weights of the networks that run beside the trained one."""
        yield from (self._make(line.bytes) for companion in self.training.companions for line in companion.weights())

    @staticmethod
    def _free_cached(done: list[tuple[_Part, list[int]]]) -> Iterator[Event]:
        """What lives to the end of forward alone."""
        yield from ((keys[slot], 0) for part, keys in done for slot in part.cached)

    def _passes(self, *, within: bool) -> Iterator[Event]:
        """Forward passes of the companions, of which nothing stays."""
        for companion in self.training.companions:
            if companion.within == within:
                alone = replace(self.training, network=companion.network, recipe=companion.recipe, layout=companion.layout, companions=(), extra=())
                writer = companion.layout.writer(alone)
                beside = [self._make(line.bytes) for line in companion.beside]
                yield from beside
                writer.next_key, writer.waiting_handles = self.next_key, 0
                yield from writer.forward_alone()
                self.next_key = writer.next_key
                yield from ((key, 0) for key, _ in beside)

    def forward_alone(self) -> Iterator[Event]:
        """A forward pass that no backward follows."""
        done: list[tuple[_Part, list[int]]] = []
        yield from self._forward(done)
        yield from self._free_cached(done)
        yield from ((key, 0) for part, keys in done for key in dict.fromkeys(keys[slot] for slot in part.kept))
        yield from self._end_backward()

    def _end_backward(self) -> Iterator[Event]:
        """Backward is done: nothing is beside a layer any more."""
        yield from self._switch({})

    def _switch(self, lines: dict[str, int]) -> Iterator[Event]:
        """Frees what the layout had beside the last layer and makes what it has beside the next one; what both have (a root unit) stays."""
        for name in [name for name, (_, size) in self.beside.items() if lines.get(name) != size or name.startswith(PASSING)]:
            yield self.beside.pop(name)[0], 0
        for name, size in lines.items():
            if name not in self.beside:
                event = self._make(size)
                self.beside[name] = event
                yield event

    def _drop_passing(self) -> Iterator[Event]:
        """Forward is done: what came and went with each layer is gone."""
        yield from self._switch({name: size for name, (_, size) in self.beside.items() if not name.startswith(PASSING)})

    def _beside(self, index: int, moment: ShardEvent) -> Iterator[Event]:
        yield from self._switch({line.id: line.bytes for line in self.timeline.layout.unsharded_and_comm(self.timeline, index, moment)})

    def _free_passed(self) -> Iterator[Event]:
        yield from ((key, 0) for key in self.passed.values())
        self.passed = {}

    def _free_outlived(self) -> Iterator[Event]:
        yield from ((key, 0) for key in self.outlived)
        self.outlived = []

    def _forward(self, done: list[tuple[_Part, list[int]]]) -> Iterator[Event]:
        """Forward, layer by layer; `done` gets each with its keys."""
        recipe = self.timeline.recipe
        leaving: list[tuple[_Part, list[int]]] = []
        flowing, keeps = 0, False
        merged: list[int] = []
        for index, part in enumerate(self.parts):
            if index == len(self.parts) - 1:
                yield from self._free_outlived()
            for _ in range(part.copies):
                yield from self._beside(index, "forward")
                if part.starts_anew and flowing:
                    merged += [] if keeps else [flowing]
                    flowing = 0
                keys = self._keys(part, flowing)
                yield from self._play(part.forward, keys, part.forward_product, recipe.handles - 1)
                flowing, keeps = keys[part.end] if part.end >= 0 else 0, part.keeps_end
                done.append((part, keys))
                if not part.tower:
                    # what towers made has been merged into the hidden states
                    yield from ((key, 0) for key in merged)
                    merged = []
                if part.offloaded:
                    leaving.append((part, keys))
                if len(leaving) > (recipe.recompute.in_flight or 0):
                    yield from self._offload(*leaving.pop(0))
        for part, keys in leaving:
            yield from self._offload(part, keys)
        if flowing and not keeps:
            yield flowing, 0

    def _backward(self, done: list[tuple[_Part, list[int]]]) -> Iterator[Event]:
        """Backward through the layers that forward left behind, the last first."""
        gradient = 0
        while done:
            part, keys = done.pop()
            if gradient and part.incoming < 0:
                yield gradient, 0
            elif gradient:
                keys[part.incoming] = gradient
            elif part.incoming >= 0:
                # a network without a head, or a tower: the gradient of its output is made elsewhere
                yield from self._free_passed()
                yield keys[part.incoming], part.incoming_bytes
            yield from self._beside(part.index, "backward")
            self._holds(keys[part.start], keys[part.outgoing] if part.outgoing >= 0 else 0)
            yield from ((keys[slot], size) for slot, size in part.offloaded)
            yield from self._play(part.backward, keys, part.backward_product, 0)
            yield from self._leave_gradients(part.index, [keys[slot] for slot in part.gradients])
            self.outlived += [keys[slot] for slot in part.lingering]
            for what, slot in part.passed:
                if what in self.passed:
                    yield keys[slot], 0
                else:
                    self.passed[what] = keys[slot]
            gradient = keys[part.outgoing] if part.outgoing >= 0 else 0
        if gradient:
            yield gradient, 0
        yield from self._free_passed()
        yield from ((key, 0) for key in self.unaccumulated)
        self.unaccumulated = []

    def _leave_gradients(self, index: int, made: list[int]) -> Iterator[Event]:
        """The gradients that a layer's backward has made stay, or what this rank holds of them takes their place."""
        left = self.timeline.gradients[index]
        if self.training.layout.lives(self.training.recipe) == "always":
            # accumulated, but for the head's gradient of a tied table, which waits for the embedding's
            self.unaccumulated += made
            return
        if left == self.timeline.row[index].tally.weight_gradients.at(self.timeline.point) or not self.timeline.layout.by_unit:
            self.gradients += made
            return
        yield from self._beside(index, "reduce")
        yield from ((key, 0) for key in made)
        if left:
            event = self._make(left)
            self.gradients.append(event[0])
            yield event

    def _holds(self, start: int, outgoing: int) -> None:
        """Told the input of a layer that goes back and the gradient of it: a layout may keep them."""

    @staticmethod
    def _offload(part: _Part, keys: list[int]) -> Iterator[Event]:
        """What a layer keeps leaves the device; backward brings it back."""
        yield from ((keys[slot], 0) for slot, _ in part.offloaded)

    def _keys(self, part: _Part, flowing: int) -> list[int]:
        """A key for each storage of one layer; its input has the key of the earlier layer's output."""
        keys = list(range(self.next_key + 1, self.next_key + part.slots + 1))
        self.next_key += part.slots
        if flowing:
            keys[part.start] = flowing
        return keys

    def _play(self, events: list[tuple[int, int]], keys: list[int], product: int, handles_left: int) -> list[Event]:
        played = [(keys[slot], size) for slot, size in events]
        if product >= 0 and self.waiting_handles > handles_left:
            return [*played[:product], *self._workspace(handles_left), *played[product:]]
        return played

    def step(self, *, is_first: bool = False) -> Iterator[Event]:
        """Micro-batches and the optimizer; in the first step it makes its states."""
        recipe = self.training.recipe
        if recipe.gradients_live == "always":
            yield from self.make_gradients()
        if self.training.layout.unshared:
            self.syncs = False
            yield from self.forward_backward()
            self.syncs = True
        yield from self.forward_backward()
        if is_first:
            yield from self.states()
        yield from self.step_temporaries()
        if not recipe.gradients_between:
            yield from self.free_gradients()
        if recipe.empties_cache:
            yield EMPTY_CACHE

    def make_gradients(self) -> Iterator[Event]:
        """Gradients of all trained tensors, where an earlier micro-batch made them; they are there once."""
        if self.gradients:
            return
        recipe = self.training.recipe
        for p in self._trained():
            key, size = self._make(round_up((recipe.gradient or p.dtype).nbytes(p.numel // p.count), BLOCK))
            self.gradients.append(key)
            yield key, size

    def free_gradients(self) -> Iterator[Event]:
        """zero_grad(set_to_none=True)."""
        yield from ((key, 0) for key in self.gradients)
        self.gradients = []


def script(writer: Program) -> Iterator[Event]:
    """Loading and the steps until the allocator has seen everything: the first makes the optimizer's states, the second runs beside them and finds
    the first's free blocks.

    Where every block is recomputed and adapters leave small tensors alone behind, the second step finds its places as the first did: it is left
    out, and what the first makes to stay is there from the start.
    """
    training = writer.training
    yield from writer.load()
    yield from writer.load_companions()
    plan = training.recipe.recompute
    alike = plan.mode != "none" and plan.every == 1 and plan.in_flight is None and not writer.leaves_large_tensors()
    if alike:
        yield from writer.states()
        yield from writer.workspaces()
        yield from writer.step()
        return
    yield from writer.step(is_first=True)
    yield from writer.step()
