"""Enough is reserved but not allocated, in blocks that are too small for the request."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.basics.units import GiB
from everybyte.diagnose.evidence import Evidence
from everybyte.diagnose.suspicion import Suspicion

LEAST_REST = 0.03
"""Of what is reserved: below, the card is full and no other way of cutting blocks would help."""
LARGE_REST = 0.2
"""Of what is reserved: a rest that is worth a word though it would not have served."""


def suspect(e: Evidence) -> Iterator[Suspicion]:
    """First only if free bytes and the rest together could have served the request; else at most second."""
    m = e.message
    if m is not None and m.rest is not None and m.requested:
        free = m.free or 0
        rest = f"{m.rest / GiB:,.2f} GiB are reserved and not allocated"
        if m.rest + free >= m.requested and m.rest >= max(m.requested // 2, int(LEAST_REST * (m.reserved or 0))):
            yield Suspicion("fragmentation", 0.9, f"{rest}, with {free / GiB:,.2f} GiB free more than the {m.requested / GiB:,.2f} GiB that were asked for")
        elif m.reserved and m.rest > LARGE_REST * m.reserved:
            yield Suspicion("fragmentation", 0.15, f"{rest}, yet too little for the request")
    last = e.facts.deepspeed[-1] if e.facts.deepspeed else None
    if m is None and last is not None and last.reserved > 2 * last.allocated and last.reserved - last.allocated > GiB:
        cached = (last.reserved - last.allocated) / GiB
        yield Suspicion("fragmentation", 0.8, f"{cached:,.2f} GiB are only cached: reserved and free for reuse, no leak")
