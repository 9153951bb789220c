"""The reduced answer of planners: the deciding figures of a job without rows and without a replay of the allocator."""

from __future__ import annotations

from typing import Any

from everybyte.basics.record import Record
from everybyte.catalog.ranges import spread
from everybyte.engines.registry import kind_of
from everybyte.estimator import accounted, beside, host_bytes
from everybyte.job import Job, read_job
from everybyte.plan.start.layout import RESERVED_MORE


class Quick(Record, frozen=True):
    """The figures of the rank that needs most. Sizes are bytes."""

    peak_allocated: int
    peak_device: int
    """About what the device shows: `estimate` replays the allocator, this adds what it reserves beyond what lives in the mean."""
    peak_device_high: int
    """The upper end of the 90 % interval of the same."""
    rank: str
    """The rank that needs most."""
    phase: str
    """The phase in which it does."""
    host: int
    """Bytes of host memory a node."""
    capacity: int
    """Of the device; 0 where the job names none."""

    @property
    def fits(self) -> bool | None:
        """Whether even the upper end has room; None without a device."""
        return self.peak_device_high <= self.capacity if self.capacity else None

    @property
    def margin(self) -> int:
        """Bytes left on the device above the upper end; negative where there is too little."""
        return self.capacity - self.peak_device_high


def quick(job: Job | dict[str, Any] | str) -> Quick:
    """The deciding figures of a job: a path, a mapping in the form of a job file, or a `Job`. Raises BadInput as `estimate` does."""
    job = job if isinstance(job, Job) else read_job(job)
    _, device, found = accounted(job)
    worst = phase = label = None
    needed = 0
    for rank in found.ranks:
        if rank.is_covered:
            continue
        totals = rank.bill.totals()
        at = max(totals, key=lambda name: totals[name])
        here = int(totals[at] * RESERVED_MORE) + beside(rank, device)
        if worst is None or here > needed:
            worst, phase, label, needed = totals[at], at, rank.label, here
    assert worst is not None
    width = spread("peak.device", kind_of(job))
    high = needed if width is None else int(width.ends("peak.device", needed)[1])
    return Quick(worst, needed, high, label or "", str(phase), host_bytes(found, job), device.capacity)
