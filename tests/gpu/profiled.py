"""The course of memory on the CPU, as torch's profiler tells it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from course import MORE_THAN_A_NUMBER, Request, StepTimeline, course_of
from torch.profiler import ProfilerActivity, profile

ALLOCATION = torch._C._profiler._EventType.Allocation
ATEN = "aten::"


class Allocation(NamedTuple):
    """Memory taken, or given back where `nbytes` is negative."""

    time_ns: int
    nbytes: int
    pointer: int
    operation: str


def profiled(make: Callable[[], Callable[[], object]], runs: int) -> StepTimeline:
    """The course of a program that is made and run so many times."""
    gc.collect()  # what others have left is not given back meanwhile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step = make()
        for _ in range(runs):
            step()
    found = sorted(_between(seen.profiler.kineto_results.experimental_event_tree()))
    return course_of((Request(one.pointer, max(one.nbytes, 0), one.operation) for one in found), MORE_THAN_A_NUMBER)


def _between(nodes: Any, operation: str = "") -> list[Allocation]:
    """What operations hand to one another. A kernel of the CPU takes memory of its own to cast, to reorder and to copy, where one of a GPU has none or other:
    what an operation takes and gives back again is left out, and so is what none takes: numbers of Python, states of random generators."""
    found: list[Allocation] = []
    for node in nodes:
        if node.tag == ALLOCATION:
            if operation or node.extra_fields.alloc_size < 0:
                found.append(_allocation(node, operation))
        elif node.name.startswith(ATEN) and not is_composite(node):
            found += _left(sorted(_within(node)))
        else:
            found += _between(node.children, node.name if node.name.startswith(ATEN) else "")
    return found


def is_composite(node: Any) -> bool:
    """Whether operations that a dispatch mode sees are within another: those of a composition, or the casts of autocast before the operation itself."""
    return node.name in composites() or any(child.name == node.name for child in node.children)


@cache
def composites() -> frozenset[str]:
    """Operations that are compositions of others on a CPU."""
    kinds: dict[str, list[bool]] = {}
    composed = {name for name in torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd") if name.startswith(ATEN)}
    for name in torch._C._dispatch_get_all_op_names():
        operation, _, kind = name.partition(".")
        if not kind.endswith("out"):
            kinds.setdefault(operation, []).append(name in composed and not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"))
    return frozenset(operation for operation, found in kinds.items() if all(found))


def _within(node: Any) -> Iterator[Allocation]:
    """The allocations of an operation and of all that it calls."""
    for child in node.children:
        if child.tag == ALLOCATION:
            yield _allocation(child, node.name)
        yield from _within(child)


def _allocation(node: Any, operation: str) -> Allocation:
    return Allocation(node.start_time_ns, node.extra_fields.alloc_size, node.extra_fields.ptr, operation)


def _left(events: list[Allocation]) -> list[Allocation]:
    """What an operation leaves behind or gives back for others."""
    taken: dict[int, Allocation] = {}
    left: list[Allocation] = []
    for one in events:
        if one.nbytes > 0:
            taken[one.pointer] = one
        elif taken.pop(one.pointer, None) is None:
            left.append(one)
    return [*left, *taken.values()]
