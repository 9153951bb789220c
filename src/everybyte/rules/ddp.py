"""Distributed data parallel: every rank holds everything, and buckets in which gradients are summed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everybyte.layers.network import Network
from everybyte.ledger.build import Line, plain
from everybyte.rules.layout import Layout

if TYPE_CHECKING:
    from everybyte.rules.recipe import Recipe

REDUCER = "pytorch torch/csrc/distributed/c10d/reducer.cpp: a flat buffer for each bucket of gradients, there from the first backward on"


class Replicated(Layout, frozen=True):
    """DDP. Without `views` the buckets are a second copy of all gradients; with it (gradient_as_bucket_view) gradients are views of the buckets,
    which live all the time."""

    views: bool = False

    def buffers(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """The buckets."""
        size = sum(line.bytes for line in self.gradients(network, recipe))
        return () if self.views or not size else (Line("buckets/gradients", "comm_buffer", size, plain("g", g=size), REDUCER, "formula"),)
