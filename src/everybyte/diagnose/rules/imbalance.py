"""One rank, stage or device that holds more than the others."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.basics.units import GiB
from everybyte.diagnose.evidence import Evidence
from everybyte.diagnose.suspicion import Suspicion

APART = 1.3


def suspect(e: Evidence) -> Iterator[Suspicion]:
    """Messages of several ranks whose own processes hold very different amounts."""
    by_device = {(m.rank, m.device): m.process or m.allocated for m in e.scan.messages if m.process or m.allocated}
    held = sorted(value for value in by_device.values() if value)
    if len(held) > 1 and held[-1] > APART * held[0]:
        yield Suspicion("imbalance", 0.35, f"ranks hold between {held[0] / GiB:,.1f} and {held[-1] / GiB:,.1f} GiB")
