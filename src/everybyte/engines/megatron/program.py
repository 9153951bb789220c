"""The allocations of a rank in program order: buffers and states are few large blocks, a micro-batch runs beside those in flight."""

from __future__ import annotations

from everybyte.basics.allocations import STREAM_BITS, Event, used_on
from everybyte.ledger.build import Line
from everybyte.rules.step.allocation_program import Program
from everybyte.rules.step.training import Training

POOL = 1
"""The private pool of CUDA graphs stands as a stream of its own, whose memory nobody else is given."""
NEVER = (1 << STREAM_BITS) - 1
"""A stream that is never done."""


class MegatronProgram(Program):
    """As on one GPU, but that all which lives from step to step is there before the first micro-batch, and nothing of it is made by backward."""

    def __init__(self, training: Training, pool_bytes: int, rests: tuple[Line, ...]) -> None:
        super().__init__(training)
        self.step_of = training
        self.pool_bytes = pool_bytes
        self.rests = rests
        """What the optimizer's step leaves until the next one begins."""
        self.resting: list[int] = []
        self.in_flight: list[Event] = []
        """What is kept of the micro-batches beside the one that runs. The program does not follow them: they come and go together."""

    def load(self) -> None:
        """Weights and main gradients, what is captured in graphs, then states, and the kept tensors of the micro-batches in flight."""
        self.waiting_handles = -1
        network, recipe, layout = self.training.network, self.training.recipe, self.training.layout
        moments = [line for line in layout.states(network, recipe) if line.id.startswith("optimizer")]
        self._lines([line for line in (*self.step_of.static(), *self.step_of.accumulated()) if line not in moments])
        if self.pool_bytes:
            key, size = self._make(self.pool_bytes)
            pool = (POOL << STREAM_BITS) + key
            self.items += [(pool, size), used_on(pool, NEVER), (pool, 0)]
        self._lines(moments)
        for segment, micro_batches in zip(self.timeline.row, self.timeline.waiting, strict=True):
            point = self.timeline.points[segment.tower]
            for _ in range(micro_batches * segment.copies):
                self.in_flight += [self._make(size) for size in (s.size.at(point) for s in segment.tally.kept) if size]

    def _lines(self, lines: list[Line]) -> None:
        self.items += [self._make(line.bytes) for line in lines if line.bytes]

    def forward_backward(self, *, syncs: bool = True) -> None:
        """A micro-batch beside those in flight, when what rested from the step before is gone."""
        self._end(self.resting)
        self.items += self.in_flight
        super().forward_backward(syncs=syncs)
        self._end(key for key, _ in self.in_flight)

    def states(self) -> None:
        """They are loaded."""

    def step_temporaries(self) -> None:
        """What the optimizer steps in place of the main gradients, and what a pipeline leaves, until the next step begins."""
        made = [self._make(line.bytes) for line in self.rests if line.bytes]
        self.resting = [key for key, _ in made]
        self.items += made

    def make_gradients(self) -> None:
        """The main gradients are buffers, loaded too."""
