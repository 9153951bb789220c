"""A training step as a row of allocations and frees in program order, for an allocator to replay: loading, micro-batches, the optimizer."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from everybyte.basics.allocations import EMPTY_CACHE, Script
from everybyte.basics.units import MiB, round_up
from everybyte.layers.network import Network
from everybyte.layers.recording.tape import Parameter
from everybyte.ledger.build import Line
from everybyte.rules.step.auxiliary_model import AuxiliaryModel
from everybyte.rules.step.layout import Layout
from everybyte.rules.step.persistent_state import shape
from everybyte.rules.step.player import Player
from everybyte.rules.step.program import Make
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.timeline import StepTimeline, written

BLOCK = 512
"""Blocks of the caching allocator are multiples of this: what lives from step to step is counted so (rules.step.persistent_state)."""


class Trains(Protocol):
    """What is asked of a training step (`rules.step.training`)."""

    @property
    def network(self) -> Network:
        """What is trained."""
        ...

    @property
    def recipe(self) -> Recipe:
        """How."""
        ...

    @property
    def layout(self) -> Layout:
        """How it lies over the ranks."""
        ...

    @property
    def compute_capability(self) -> str:
        """Of the device."""
        ...

    @property
    def extra(self) -> tuple[Line, ...]:
        """Rows of the engine that live all the time."""
        ...

    @property
    def companions(self) -> tuple[AuxiliaryModel, ...]:
        """What runs forward beside it."""
        ...

    @property
    def timeline(self) -> StepTimeline:
        """The program of its step."""
        ...

    def inputs(self) -> list[Line]:
        """The last batch."""
        ...

    def step_temporaries(self) -> list[Line]:
        """What the optimizer makes for a moment."""
        ...


class Program(Player):
    """Writes the events of loading, of steps and of the optimizer."""

    def __init__(self, training: Trains) -> None:
        super().__init__(training.timeline, training.compute_capability)
        self.training = training

    def load(self) -> None:
        """The weights, and whatever lives from the start."""
        self._written(self.training.layout.loading(self.training.network, self.training.recipe))
        for line in self._from_the_start():
            self.items.append(self._make(line.bytes))
        for segment, micro_batches in zip(self.timeline.row, self.timeline.waiting, strict=True):
            point = self.timeline.points[segment.tower]
            for _ in range(micro_batches * segment.copies):
                self.items += [self._make(s.size.at(point)) for s in segment.tally.kept]

    def _from_the_start(self) -> list[Line]:
        """What lives all the time beside weights, states and workspaces."""
        training = self.training
        lines = (*training.layout.buffers(training.network, training.recipe), *training.inputs(), *training.extra)
        return [line for line in lines if line.bytes]

    def states(self) -> None:
        """Optimizer states and master copies, tensor by tensor, made in the first step."""
        self._make_all(_states(self.training.network, self.training.recipe.timeless, self.training.layout))

    def leaves_large_tensors(self) -> bool:
        """Whether a step leaves a state, a gradient or a graph behind that belongs to the pool of large tensors (above 1 MiB)."""
        recipe, layout = self.training.recipe, self.training.layout
        plan = recipe.optimizer
        ops = layout.optimizing(self.training.network, recipe, is_first=True)
        if ops is not None:
            return any(isinstance(op, Make) and op.slot == "states" and op.bytes > MiB for op in ops)
        for p in set(self._trained()):
            kind = plan.master or recipe.gradient or p.dtype
            if max((*plan.state_tensors(shape(p), p.dtype, p.name), kind.nbytes(p.numel // p.count))) > MiB:
                return True
        return recipe.graph_outlives

    def _trained(self) -> list[Parameter]:
        """The trained tensors in the order of the modules."""
        training = self.training
        return [p for p in training.layout.stepped_tensors(training.network, training.recipe.setup) if p.trainable and not p.buffer]

    def optimizing(self, *, is_first: bool) -> None:
        """The optimizer's step: states, if it is the first, and temporaries."""
        ops = self.training.layout.optimizing(self.training.network, self.training.recipe, is_first=is_first)
        if ops is not None:
            self._written(ops)
            return
        if is_first:
            self.states()
        self.step_temporaries()

    def step_temporaries(self) -> None:
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
        self.items += made
        self._end(key for key, _ in made)

    def load_companions(self) -> None:
        """Weights of the networks that run beside the trained one."""
        self.items += [self._make(line.bytes) for companion in self.training.companions for line in companion.weights()]

    # -- a micro-batch ------------------------------------------------------------------------------------------------------
    def forward_backward(self, *, syncs: bool = True) -> None:
        """A micro-batch, and what runs before it."""
        self._passes(within=False)
        super().forward_backward(syncs=syncs)

    def between(self) -> None:
        """Reference models and the like."""
        self._passes(within=True)

    def _passes(self, *, within: bool) -> None:
        """Forward passes of the companions, of which nothing stays."""
        for companion in self.training.companions:
            if companion.within == within:
                writer = Player(companion.timeline, self.compute_capability)
                beside = [self._make(line.bytes) for line in companion.beside]
                self.items += beside
                writer.items, writer.next_key, writer.waiting_handles = self.items, self.next_key, 0
                writer.forward_alone()
                self.next_key = writer.next_key
                self._end(key for key, _ in beside)

    # -- a step -------------------------------------------------------------------------------------------------------------
    def step(self, *, is_first: bool = False) -> None:
        """Micro-batches and the optimizer; in the first step it makes its states."""
        recipe = self.training.recipe
        if recipe.gradients_live == "always":
            self.make_gradients()
        elif recipe.gradients_live == "backward":
            self.free_gradients()
        if self.training.layout.unshared:
            self.forward_backward(syncs=False)
        self.forward_backward()
        self.optimizing(is_first=is_first)
        if not recipe.gradients_between:
            self.free_gradients()
        if recipe.empties_cache:
            self.items.append(EMPTY_CACHE)

    def make_gradients(self) -> None:
        """Gradients of all trained tensors, where an earlier micro-batch made them; they are there once, unless the last one shares them anew."""
        training = self.training
        recipe, layout = training.recipe, training.layout
        if self.gradients and not layout.unshared:
            return
        self.free_gradients()
        if ops := written(self.timeline.network, recipe.timeless, layout).accumulated:
            self._written(ops)
            for slot in [slot for slot in self.slots if slot.startswith("shares/")]:
                self.gradients += [key for keys in self.slots.pop(slot) for key in keys]
            return
        for p in layout.tensors(training.network, recipe.setup):
            if p.trainable and not p.buffer:
                key, size = self._make(round_up((recipe.gradient or p.dtype).nbytes(p.numel // p.count), BLOCK))
                self.gradients.append(key)
                self.items.append((key, size))


@lru_cache(maxsize=256)
def _states(network: Network, recipe: Recipe, layout: Layout) -> tuple[int, ...]:
    """Bytes of the states and the master copy of each trained tensor, the same for every batch."""
    sizes: list[int] = []
    for p in layout.stepped_tensors(network, recipe.setup):
        if p.trainable and not p.buffer:
            sizes += recipe.optimizer.state_tensors(shape(p), p.dtype, p.name)
            sizes += [recipe.optimizer.master.nbytes(p.numel // p.count)] if recipe.optimizer.master is not None else []
    return tuple(round_up(size, BLOCK) for size in sizes)


def script(writer: Program) -> Script:
    """Loading and the steps until the allocator has seen everything: the first makes the optimizer's states, the second runs beside them and finds
    the first's free blocks.

    Where every block is recomputed and adapters leave small tensors alone behind, the second step finds its places as the first did: it is left
    out, and what the first makes to stay is there from the start.
    """
    training = writer.training
    writer.load()
    writer.load_companions()
    plan = training.recipe.recompute
    alike = plan.mode != "none" and plan.every == 1 and plan.in_flight is None and not writer.leaves_large_tensors()
    if alike:
        writer.states()
        writer.workspaces()
        writer.step()
        return Script(writer.items)
    writer.step(is_first=True)
    writer.step()
    return Script(writer.items)
