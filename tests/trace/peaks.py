"""The peaks of steps: as torch's profiler measures them on real tensors on the CPU, and as the recorder sees them on fake ones."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile

from everybyte.trace.branches import real_branches
from everybyte.trace.record import Recorder
from everybyte.trace.watch import Watch

STEPS = 2
CLOSE = 0.002
"""Share by which the peaks may differ."""
Step = Callable[[], None]


def measured(step: Step) -> list[int]:
    """The growth at the peak of each step, from the events of torch's profiler."""
    gc.collect()  # earlier tests' cycles must not be freed while this one is measured
    peaks = []
    for _ in range(STEPS):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
            step()
        events = sorted(_allocations(run.profiler.kineto_results.experimental_event_tree()))
        now = peak = 0
        for _, size in events:
            now += size
            peak = max(peak, now)
        peaks.append(peak)
    return peaks


def _allocations(nodes: Any) -> list[tuple[int, int]]:
    found = []
    for node in nodes:
        if node.tag == torch._C._profiler._EventType.Allocation:
            found.append((node.start_time_ns, node.extra_fields.alloc_size))
        found += _allocations(node.children)
    return found


def traced(make: Callable[[], Step]) -> list[int]:
    """The growth at the peak of each step, as the recorder sees it on fake tensors."""
    peaks = []
    with FakeTensorMode(allow_non_fake_inputs=True):
        recorder = Recorder("cpu")
        with real_branches("cpu"), recorder, Watch(recorder).modules():
            step = make()
            for _ in range(STEPS):
                start, before = len(recorder.events), recorder.current
                step()
                now = peak = before
                for _, size in recorder.events[start:]:
                    now += size
                    peak = max(peak, now)
                peaks.append(peak - before)
    return peaks
