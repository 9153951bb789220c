"""The peaks of steps: as torch's profiler measures them on real tensors on the CPU, and as the recorder sees them on fake ones."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.profiler import ProfilerActivity, profile

from everybyte.trace.patching.branches import real_branches
from everybyte.trace.recording.modules import Modules
from everybyte.trace.recording.record import Recorder
from everybyte.trace.recording.watch import Watch
from everybyte.trace.values.unknown_scalars import Read

STEPS = 2
CLOSE = 0.002
"""Share by which the peaks may differ."""
Step = Callable[[], None]


def measured(step: Step, steps: int = STEPS) -> list[int]:
    """The growth at the peak of each step, from the events of torch's profiler."""
    gc.collect()  # earlier tests' cycles must not be freed while this one is measured
    gc.freeze()  # and the next search for them is short
    peaks = []
    for _ in range(steps):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
            step()
        events = sorted(_allocations(run.profiler.kineto_results.experimental_event_tree()))
        now = peak = 0
        for _, size in events:
            now += size
            peak = max(peak, now)
        peaks.append(peak)
    return peaks


ALLOCATION = torch._C._profiler._EventType.Allocation
SCRATCHY = frozenset(
    {
        "aten::convolution",
        "aten::convolution_backward",
        "aten::mkldnn_linear",
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::baddbmm",
        "aten::_grouped_mm",
        "aten::mul",
        "aten::mean",
    }
)
"""Kernels of CPUs that reorder tensors in memory of their own, or cast them there (factors of two dtypes, TensorIterator.cpp; what a mean sums, ReduceOps.cpp),
where those of GPUs cast as they read. What they take and give back within the operation is left out."""


def _allocations(nodes: Any) -> list[tuple[int, int]]:
    """(time, bytes) of each allocation, negative for frees, without the scratch of kernels that only CPUs have."""
    found = []
    for node in nodes:
        if node.name in SCRATCHY:
            found += _without_scratch(sorted((event.start_time_ns, event.extra_fields.alloc_size, event.extra_fields.ptr) for event in _within(node)))
        else:
            found += _allocations(node.children)
            if node.tag == ALLOCATION:
                found.append((node.start_time_ns, node.extra_fields.alloc_size))
    return found


def _without_scratch(events: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """The (time, bytes, pointer) that are left when what is taken and given back again is left out; a pointer can be taken again."""
    taken: dict[int, tuple[int, int]] = {}
    kept: set[tuple[int, int]] = set()
    for time, size, pointer in events:
        if size > 0:
            taken[pointer] = (time, size)
        elif pointer in taken:
            del taken[pointer]
        else:
            kept.add((time, size))
    return sorted(kept | set(taken.values()))


def _within(node: Any) -> Iterator[Any]:
    """The allocations of an operation and of all that it calls."""
    for child in node.children:
        if child.tag == ALLOCATION:
            yield child
        yield from _within(child)


@contextlib.contextmanager
def faked() -> Iterator[None]:
    """While entered, tensors are fake, and libraries treat them as real ones."""
    with FakeTensorMode(allow_non_fake_inputs=True), real_branches("cpu"), Read().met():
        yield


def traced(make: Callable[[], Step]) -> list[int]:
    """The growth at the peak of each step, as the recorder sees it on fake tensors."""
    return traced_with_highest(make)[0]


def traced_with_highest(make: Callable[[], Step]) -> tuple[list[int], int]:
    """(the growth at the peak of each step, the bytes at the highest instant of all), as the recorder sees them."""
    peaks = []
    recorder = Recorder("cpu")
    with faked(), recorder, Watch(recorder).modules():
        step = make()
        highest = recorder.peak
        for _ in range(STEPS):
            before = recorder.current
            recorder.forget_peak()
            step()
            peaks.append(recorder.peak - before)
            highest = max(highest, recorder.peak)
    return peaks, highest


class Tracker(MemTracker):
    """torch's own tracker, told what is so on real tensors: autograd sums into tensors that nobody else holds, and no hooks keep the gradients of modules."""

    def __init__(self) -> None:
        super().__init__()
        self._mod_tracker = Modules()
        self._real = Recorder("cpu")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        in_place = self._real._in_place(func, args, kwargs)
        return super().__torch_dispatch__(in_place or func, types, args, kwargs)


def tracked_highest(make: Callable[[], Step]) -> int:
    """The bytes at the highest instant, as torch's own tracker sees it on fake tensors."""
    tracker = Tracker()
    with faked(), tracker:
        step = make()
        for _ in range(STEPS):
            step()
            tracker.reset_mod_stats()
    total: int = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    return total
