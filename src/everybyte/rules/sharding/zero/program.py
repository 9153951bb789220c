"""DeepSpeed's allocations in program order, by CUDA stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from everybyte.basics.allocations import EMPTY_CACHE, STREAM_BITS, Event
from everybyte.basics.units import MiB
from everybyte.layers.recording.tape import Parameter
from everybyte.ledger.build import Line
from everybyte.rules.sharding.zero.stages import Zero
from everybyte.rules.sharding.zero.zero3 import ZeroCut, part_of
from everybyte.rules.step.allocation_program import PASSING, Program
from everybyte.rules.step.persistent_state import tensor_bytes
from everybyte.rules.step.training import Training

SIDE = 1
"""The stream of gathering and reducing, where overlap_comm gives it one of its own."""


class ZeroProgram(Program):
    """Writes the events of a step under ZeRO."""

    def __init__(self, training: Training, layout: Zero) -> None:
        super().__init__(training)
        self.layout = layout
        self.numel = layout.on_device(training.network, training.recipe)
        self.first_step = False

    def load(self) -> Iterator[Event]:
        """Weights tensor by tensor; the trained ones, or this rank's parts of them, then move through host memory into one flat tensor (where the
        device has room, stages 1 and 2 make it beside them); what lives from the start."""
        setup, cut = self.training.recipe.setup, isinstance(self.layout, ZeroCut)
        settings = self.layout.settings
        degree = settings.degree if settings.params == "none" else 0
        trained: list[Event] = []
        for p in self.tensors:
            if not (p.trainable and not p.buffer):
                yield from self._some(part_of(p, setup, degree)[1] if cut else tensor_bytes(p, setup))
            elif not cut:
                trained.append(self._make(tensor_bytes(p, setup)))
                yield trained[-1]
        yield from ((key, 0) for key, _ in trained)
        yield EMPTY_CACHE
        yield from self._some(self._flat_bytes())
        yield from self._some(settings.master.nbytes(self.numel))
        persistent = [line for line in self.training.layout.weights(self.training.network, self.training.recipe) if line.id.startswith("persistent/")]
        for line in (*persistent, *self._from_the_start()):
            yield from self._some(line.bytes)

    def _some(self, nbytes: int) -> Iterator[Event]:
        """One tensor, if it has bytes."""
        if nbytes:
            yield self._make(nbytes)

    def _flat_bytes(self) -> int:
        network, recipe = self.training.network, self.training.recipe
        return recipe.setup.weights.nbytes(self.layout.flat_numel(network, recipe))

    def states(self) -> Iterator[Event]:
        """They are made inside the first step, behind the gradients in the master's type: see `step_temporaries`."""
        self.first_step = True
        yield from ()

    def leaves_large_tensors(self) -> bool:
        """Whether a step leaves more behind than small tensors."""
        return self.layout.settings.master.nbytes(self.numel) > MiB

    def _trained(self) -> list[Parameter]:
        return []

    def step_temporaries(self) -> Iterator[Event]:
        """The step, sub-group by sub-group: gradients are joined, cast to the master's type, and the optimizer runs. What gradients this rank's partition
        reaches into lives until then; stage 1 makes it of whole gradients when backward is done."""
        network, recipe, settings = self.training.network, self.training.recipe, self.layout.settings
        before = self.layout.before_step(network, recipe)
        whole = [self._make(line.bytes) for line in self.layout.sharing(recipe) if line.bytes]
        left = [self._make(line.bytes) for line in before if line.category == "gradient" and line.bytes]
        yield from (*whole, *left)
        yield from ((key, 0) for key, _ in whole)
        yield from self.free_gradients()
        yield from self._passing(line for line in before if line.category != "gradient")
        kind = settings.accumulation or recipe.setup.weights
        for numel in self.layout.stepped(network, recipe):
            joined = self._make(kind.nbytes(numel))
            yield joined
            gradient = joined
            if kind != settings.master:
                gradient = self._make(settings.master.nbytes(numel))
                yield gradient
                yield joined[0], 0
            yield from ((key, 0) for key, _ in left)
            left = []
            if self.first_step:
                yield from (self._make(size) for size in recipe.optimizer.state_tensors((numel,), settings.master, "partition"))
            yield from self._passing(self.layout.stepping(recipe, numel)[1:])
            yield gradient[0], 0
        yield from ((key, 0) for key, _ in left)
        self.first_step = False

    def _passing(self, lines: Iterable[Line]) -> Iterator[Event]:
        """Tensors that are made and freed together."""
        made = [self._make(line.bytes) for line in lines if line.bytes]
        yield from made
        yield from ((key, 0) for key, _ in made)

    def make_gradients(self) -> Iterator[Event]:
        """Whole gradients of earlier micro-batches, in stage 1."""
        if not self.gradients:
            kind = self.training.recipe.setup.weights
            events = [self._make(kind.nbytes(p.numel // p.count)) for p in super()._trained()]
            self.gradients = [key for key, _ in events]
            yield from events

    def _switch(self, lines: dict[str, int]) -> Iterator[Event]:
        """What passes from layer to layer is made on a stream of its own where communication overlaps."""
        if not self.layout.settings.overlap:
            yield from super()._switch(lines)
            return
        for event in super()._switch(lines):
            name = next((n for n, made in self.beside.items() if made == event), "")
            if not name.startswith(PASSING):
                yield event
                continue
            self.beside[name] = (event[0] + (SIDE << STREAM_BITS), event[1])
            yield self.beside[name]
