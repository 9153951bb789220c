"""Distributed data parallel: every rank holds everything, and buckets in which gradients are summed."""

from __future__ import annotations

from everybyte.layers.network import Network
from everybyte.ledger.build import Line, plain
from everybyte.rules.step.layout import Layout
from everybyte.rules.step.persistent_state import gradient_lines
from everybyte.rules.step.recipe import GradientsLive, Recipe

REDUCER = "pytorch torch/csrc/distributed/c10d/reducer.cpp initialize_buckets: flat buffers as large as all gradients together, there all the time"


class Replicated(Layout, frozen=True):
    """DDP."""

    views: bool = False
    """Gradients are views of the buckets (gradient_as_bucket_view); else the buckets are a second copy of all of them."""

    def buffers(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """The buckets."""
        size = sum(line.bytes for line in gradient_lines(network, recipe.setup, recipe.gradient, self))
        return (Line("buckets/gradients", "comm_buffer", size, plain("g", g=size), REDUCER, "formula"),) if size else ()

    def gradients(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """Nothing beside the buckets where gradients are views of them."""
        return () if self.views else super().gradients(network, recipe)

    def lives(self, recipe: Recipe) -> GradientsLive:
        """A gradient is copied into its view as soon as it is made."""
        return "always" if self.views else super().lives(recipe)
