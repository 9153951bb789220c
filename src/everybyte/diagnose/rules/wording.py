"""What the wording of the message itself says."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.diagnose.evidence import Evidence
from everybyte.diagnose.suspicion import Suspicion


def suspect(e: Evidence) -> Iterator[Suspicion]:
    """Engines say in words what did not fit."""
    if e.message is not None:
        for cause, confidence in e.message.form.causes:
            yield Suspicion(cause, confidence, e.message.form.why)
