"""A limit, not lack of memory: what one block, one buffer or one process may have, or a count in 32 bits."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.basics.units import GiB
from everybyte.catalog.gpus import all_gpus
from everybyte.diagnose.evidence import Evidence
from everybyte.diagnose.suspicion import Suspicion

TOLERANCE = 0.02


def suspect(e: Evidence) -> Iterator[Suspicion]:
    """A request above the capacity or an allowance; a request that was refused though more was free; a capacity that is no GPU's own memory."""
    m = e.message
    if m is None or m.form.weight == "host":
        return
    if m.allowed is not None and m.capacity is not None and m.allowed < m.capacity:
        yield Suspicion("limit", 0.85, f"the process may have {m.allowed / GiB:,.2f} of {m.capacity / GiB:,.2f} GiB (a memory fraction is set)")
    if m.requested is None:
        return
    if m.capacity is not None and m.requested > m.capacity:
        yield Suspicion("limit", 0.5, f"{m.requested / GiB:,.2f} GiB were asked for at once, the runtime reports {m.capacity / GiB:,.2f} GiB in all")
    elif m.free is not None and m.requested < 0.9 * m.free and m.free > GiB:
        yield Suspicion("limit", 0.6, f"{m.free / GiB:,.2f} GiB were free, more than the request: something else limits it")
    if m.form.id == "torch.hip.frame2" and m.capacity is not None and not _is_memory_of_a_gpu(m.capacity):
        yield Suspicion("limit", 0.65, "the capacity is no GPU's own memory: a share of the host's memory (GTT), whose limit is a setting of the driver")


def _is_memory_of_a_gpu(capacity: int) -> bool:
    """Whether a GPU of the catalogue has about this much memory, as bytes or as a nominal size."""
    sizes = {size for gpu in all_gpus() for size in (gpu.capacity, int(gpu.memory_gb_marketing * GiB))}
    return any(abs(size - capacity) < TOLERANCE * size for size in sizes)
