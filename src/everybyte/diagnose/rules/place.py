"""Where the program was when memory ran out."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.diagnose.evidence import Evidence
from everybyte.diagnose.suspicion import Suspicion

STAGES = {"save": ("checkpoint_save", 0.5), "eval": ("evaluation_or_generation", 0.5), "capture": ("cuda_graphs", 0.5), "load": ("weights_too_large", 0.4)}
"""What the log said last that it does, where no frame says more."""


def suspect(e: Evidence) -> Iterator[Suspicion]:
    """The innermost frame that is known; else what the log said that begins."""
    if e.message is None or e.message.form.weight == "host":
        return
    if e.place is not None:
        for cause, confidence in e.place.causes:
            yield Suspicion(cause, confidence, e.place.why)
        return
    stage = e.facts.stage_at(e.message.line)
    if stage in STAGES and not e.message.form.causes:
        cause, confidence = STAGES[stage]
        yield Suspicion(cause, confidence, f"the last thing that the log says it does: {stage}")
