"""The allocations of a rank in program order: buffers and states are few large blocks, a micro-batch runs beside those in flight."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.rules.step.allocation_program import Event, Program
from everybyte.rules.step.training import Training


class MegatronProgram(Program):
    """As on one GPU, but that all which lives from step to step is there before the first micro-batch, and nothing of it is made by backward."""

    def __init__(self, training: Training, pool_bytes: int) -> None:
        super().__init__(training)
        self.pool_bytes = pool_bytes

    def load(self) -> Iterator[Event]:
        """Weights, main gradients, states, workspaces and buffers, then the kept tensors of the micro-batches in flight."""
        self.waiting_handles = -1
        training = self.training
        if self.pool_bytes:
            yield self._make(self.pool_bytes)
        for line in (*training.static(), *training.gradients()):
            if line.bytes:
                yield self._make(line.bytes)
        for segment, micro_batches in zip(self.timeline.row, self.timeline.waiting, strict=True):
            point = self.timeline.points[segment.tower]
            for _ in range(micro_batches * segment.copies):
                yield from (self._make(size) for size in (s.size.at(point) for s in segment.tally.kept) if size)

    def states(self) -> Iterator[Event]:
        """They are loaded."""
        return iter(())

    def make_gradients(self) -> Iterator[Event]:
        """The main gradients are buffers, loaded too."""
        return iter(())
