"""A bound that needs no ledger: what lives between two steps whatever is recomputed."""

from __future__ import annotations

from everybyte.plan.layouts.layout import Layout
from everybyte.plan.time.shape import NetworkShape

MASTER = 4
"""Of its fp32 copy."""
WIDTHS = {"fp32": 4, "bf16": 2, "": 2}
"""Of a gradient or a moment; where nothing is said the smaller one, so that the bound stays one."""


def static_bytes(shape: NetworkShape, layout: Layout, weight: int = 2) -> float:
    """Bytes of the mean pipeline stage at least, of its matrices alone: no stage that holds more needs less. `weight`: bytes of one."""
    kept = weight + WIDTHS[layout.grads]
    states = MASTER + 2 * WIDTHS[layout.moments]
    ranks = layout.dp * layout.cp
    dense = shape.dense_parameters / (layout.tp * layout.pp)
    ways = layout.ep * (layout.etp if layout.ep > 1 else layout.tp)
    experts = shape.expert_parameters / (layout.pp * ways)
    expert_ranks = max(1.0, ranks * layout.tp / ways)
    return dense * (kept + states / ranks) + experts * (kept + states / expert_ranks)
