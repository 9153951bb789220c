"""How memory went from step to step: what grows steadily is a leak, what follows the longest batch is not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from everybyte.basics.units import GiB
from everybyte.diagnose.evidence import Evidence
from everybyte.diagnose.suspicion import Suspicion

LEAST_POINTS = 4
SHARE_UP = 0.85
"""Of the steps that have more than the one before, where memory leaks."""


def suspect(e: Evidence) -> Iterator[Suspicion]:
    """Steady growth over the steps that the log prints."""
    steps = e.facts.steps
    if len(steps) < LEAST_POINTS:
        return
    pairs = list(pairwise(steps))
    up = sum(after > before for before, after in pairs) / len(pairs)
    grown = steps[-1] - steps[0]
    if up >= SHARE_UP and grown > 0.05 * steps[0] and grown > 4 * max((before - after for before, after in pairs), default=0):
        yield Suspicion("leak", 0.75, f"what is held grows from step to step: {steps[0] / GiB:,.2f} to {steps[-1] / GiB:,.2f} GiB over {len(steps)} steps")
    elif e.message is not None and max(steps) > 1.15 * sorted(steps)[len(steps) // 2]:
        yield Suspicion("activations", 0.25, "what is held follows the batch: the longest needs most")
