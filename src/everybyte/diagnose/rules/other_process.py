"""Other processes hold the GPU; or ranks of the same job that sit on one GPU by mistake."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.basics.units import GiB
from everybyte.diagnose.evidence import Evidence
from everybyte.diagnose.suspicion import Suspicion

LEAST_SHARE = 0.08
"""Of the capacity: less is the display, or rounding of the printed numbers."""
ALIKE = 0.05


def suspect(e: Evidence) -> Iterator[Suspicion]:
    """What others hold, printed or by difference."""
    m = e.message
    if m is None or m.other is None or m.capacity is None or m.form.id == "torch.mps":
        return
    share = m.other / m.capacity
    if share < LEAST_SHARE:
        return
    why = f"other processes hold {m.other / GiB:,.2f} of {m.capacity / GiB:,.2f} GiB"
    own = m.process or m.reserved or 0
    others = [one for one in m.others if one > m.capacity // 100]
    alike = len(others) > 1 and max(others) - min(others) < ALIKE * max(others)
    if alike or (len(others) == 1 and own and abs(others[0] - own) < ALIKE * own and "rank" in e.text):
        yield Suspicion("wrong_device", 0.7, f"{why}, in {len(others)} processes of about the same size: ranks of one job on one GPU")
        yield Suspicion("other_process", 0.4, why)
        return
    yield Suspicion("other_process", min(0.55 + share, 0.97), why)
