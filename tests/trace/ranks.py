"""One rank of many on fake tensors on the CPU, inside a test's own process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tests.trace.peaks import Step
from torch._subclasses.fake_tensor import FakeTensorMode

from everybyte.trace.patching.branches import real_branches
from everybyte.trace.ranks.distributed import Groups, process_groups
from everybyte.trace.ranks.parallel import parallel_wrappers
from everybyte.trace.recording.record import Recorder
from everybyte.trace.recording.watch import Watch


@contextlib.contextmanager
def alone(rank: int, world: int, **neighbours: Any) -> Iterator[None]:
    """While entered, this process is one rank of `world`, and tensors are fake; `neighbours` are those of a pipeline."""
    with FakeTensorMode(allow_non_fake_inputs=True), real_branches("cpu"), process_groups(rank, world), parallel_wrappers(**neighbours):
        yield


def traced_rank(make: Callable[[], Step], rank: int, world: int, steps: int, **neighbours: Any) -> tuple[list[int], int]:
    """(the growth at the peak of each step, the peak of all) of a rank."""
    peaks = []
    with alone(rank, world, **neighbours):
        recorder = Recorder("cpu")
        recorder.collective = Groups(rank, world).answer
        with recorder, Watch(recorder).modules():
            step = make()
            for _ in range(steps):
                before = recorder.current
                recorder.forget_peak()
                step()
                peaks.append(recorder.peak - before)
    return peaks, highest(recorder)


def highest(recorder: Recorder) -> int:
    """The peak of all events."""
    now = peak = 0
    for _, size in recorder.events:
        now += size
        peak = max(peak, now)
    return peak
