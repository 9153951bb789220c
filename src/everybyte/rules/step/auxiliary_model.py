"""Networks that run beside the trained one without gradients: reference and reward models, or the trained weights themselves under no_grad."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from everybyte.basics.record import Record
from everybyte.layers.network import Network
from everybyte.ledger.build import Line
from everybyte.rules.step.layout import WHOLE, Layout
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.timeline import Peak, StepTimeline


class AuxiliaryModel(Record, frozen=True):
    """A forward pass without gradients, and the weights that it needs if they are its own."""

    role: str
    """`reference`, `reward`, `policy`: rows are called after it."""
    network: Network
    recipe: Recipe
    """With nothing trained."""
    layout: Layout = WHOLE
    """How its weights lie over the ranks."""
    resident: bool = True
    """It has weights of its own, which are always on the device."""
    within: bool = True
    """It runs between the forward and the backward of the trained network, so that what that keeps is there; else before the step."""
    beside: tuple[Line, ...] = ()
    """What else is there while it runs."""

    @property
    def timeline(self) -> StepTimeline:
        """Its forward."""
        return _course(self.network, self.recipe, self.layout)

    def peak(self) -> Peak:
        """The highest instant of its forward."""
        return self.timeline.forward(0, len(self.timeline.row))

    def height(self) -> int:
        """Bytes at that instant, without weights."""
        return self.peak().bytes + sum(line.bytes for line in self.beside)

    def weights(self) -> Iterator[Line]:
        """Rows of its weights."""
        if self.resident:
            yield from (line._replace(id=f"{self.role}/{line.id}") for line in self.layout.weights(self.network, self.recipe))

    def lines(self) -> Iterator[Line]:
        """Rows of its highest instant."""
        yield from (line._replace(id=f"{self.role}/{line.id}") for line in (*self.beside, *self.timeline.lines(self.peak())))


@lru_cache(maxsize=64)
def _course(network: Network, recipe: Recipe, layout: Layout) -> StepTimeline:
    return StepTimeline(network, recipe, layout)
