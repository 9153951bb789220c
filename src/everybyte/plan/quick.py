"""The reduced answer of planners: the deciding figures of a job without rows and without a replay of the allocator."""

from __future__ import annotations

from typing import Any

from everybyte.basics.record import Record
from everybyte.catalog.ranges import spread
from everybyte.engines.registry import kind_of
from everybyte.estimator import accounted, beside, filled_in, host_bytes
from everybyte.job import Job, read_job
from everybyte.layers.network import Network
from everybyte.plan.start.layout import RESERVED_MORE
from everybyte.plan.time.figures import speed_of
from everybyte.rules.accounting.account import Account


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
    step_s: float | None = None
    """Seconds of a training step, where they were asked for and card and model have a clock."""

    @property
    def fits(self) -> bool | None:
        """Whether even the upper end has room; None without a device."""
        return self.peak_device_high <= self.capacity if self.capacity else None

    @property
    def margin(self) -> int:
        """Bytes left on the device above the upper end; negative where there is too little."""
        return self.capacity - self.peak_device_high


def quick(job: Job | dict[str, Any] | str, *, times: bool = False) -> Quick:
    """The deciding figures of a job: a path, a mapping in the form of a job file, or a `Job`; with `times` the seconds of a training step too, which
    take about as long again. Raises BadInput as `estimate` does."""
    job = job if isinstance(job, Job) else read_job(job)
    network, device, found = accounted(job)
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
    seconds = _step(job, network, found) if times and job.train is not None else None
    return Quick(worst, needed, high, label or "", str(phase), host_bytes(found, job), device.capacity, seconds)


def _step(job: Job, network: Network, found: Account) -> float | None:
    """As the estimate has it, of the job with its defaults filled in."""
    speed = speed_of(read_job(filled_in(job, found)), network)
    return None if isinstance(speed, str) else dict(speed.figures).get("step.time_s")
