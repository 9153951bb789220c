"""Replays a row of events through PyTorch's caching allocator.

An event is (key, bytes): the allocation of a request, on the stream key >> STREAM_BITS, or, with 0 bytes, its end. The other events are made by
`used_on`, `finished` and EMPTY_CACHE.
"""

from __future__ import annotations

from collections.abc import Iterable

from everybyte.allocator.blocks import Action
from everybyte.allocator.caching import DEFAULT, CachingAllocator
from everybyte.allocator.expandable import ExpandableSegments
from everybyte.allocator.settings import AllocatorSettings

Event = tuple[int, int]
EMPTY_CACHE: Event = (0, 0)
"""torch.cuda.empty_cache()."""


def used_on(key: int, stream: int) -> Event:
    """Work on another stream uses a request: Tensor.record_stream(stream)."""
    return key, -1 - stream


def finished(stream: int) -> Event:
    """A stream has done what it was given: what it used, if it is freed by now, can be had again."""
    return -1 - stream, 0


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
    for allocator.event, (key, nbytes) in enumerate(events):
        serve(allocator, key, nbytes)
    return allocator
