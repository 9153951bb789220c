"""A GPU that is full of the process's own tensors, where nothing else decides."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.basics.units import GiB
from everybyte.diagnose.evidence import Evidence
from everybyte.diagnose.suspicion import Suspicion

FULL = 0.85
SMALL = 0.03
"""Of the capacity: a request that any other would have been in the place of."""


def suspect(e: Evidence) -> Iterator[Suspicion]:
    """PyTorch's own tensors fill the card. Where they do at rest already, the weights and states are the cause, else what a step makes."""
    m = e.message
    if m is None or m.form.engine != "torch" or m.form.weight != "fault":
        return
    if m.allocated is not None and m.capacity and m.allocated > FULL * m.capacity:
        why = f"this process's own tensors fill the GPU: {m.allocated / GiB:,.2f} of {m.capacity / GiB:,.2f} GiB"
        if e.phase == "load":
            yield Suspicion("weights_too_large", 0.5, why)
        else:
            yield Suspicion("activations", 0.3, why)
            yield Suspicion("weights_too_large", 0.25, why)
    yield Suspicion("unknown", 0.28, "the message alone does not tell what fills the GPU")
