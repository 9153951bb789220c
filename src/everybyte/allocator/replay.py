"""Replays a row of events through PyTorch's caching allocator.

What an event is stands in `basics.allocations`.
"""

from __future__ import annotations

from collections.abc import Iterable

from everybyte.allocator.blocks import Action
from everybyte.allocator.caching import CachingAllocator
from everybyte.allocator.expandable import ExpandableSegments
from everybyte.allocator.settings import DEFAULT, AllocatorSettings
from everybyte.basics.allocations import Event


def simulator(settings: AllocatorSettings = DEFAULT, capacity: int = 0, *, total: int = 0, log: list[Action] | None = None) -> CachingAllocator:
    """An allocator with these settings that holds nothing yet."""
    kind = ExpandableSegments if settings.expandable_segments else CachingAllocator
    return kind(settings, capacity, total=total, log=log)


def serve(allocator: CachingAllocator, key: int, nbytes: int) -> None:
    """Serves one event."""
    if nbytes > 0:
        allocator.malloc(key, nbytes)
    elif nbytes < 0:
        allocator.use(key, -1 - nbytes)
    elif key > 0:
        allocator.free(key)
    elif key < 0:
        allocator.finish(-1 - key)
    else:
        allocator.empty_cache()


def replay(
    events: Iterable[Event], settings: AllocatorSettings = DEFAULT, capacity: int = 0, *, total: int = 0, log: list[Action] | None = None
) -> CachingAllocator:
    """The allocator after the events. Raises OutOfMemory at the event that a device of `capacity` cannot serve."""
    allocator = simulator(settings, capacity, total=total, log=log)
    malloc, free = allocator.malloc, allocator.free
    for allocator.event, (key, nbytes) in enumerate(events):
        if nbytes > 0:
            malloc(key, nbytes)
        elif key > 0 and not nbytes:
            free(key)
        else:
            serve(allocator, key, nbytes)
    return allocator
