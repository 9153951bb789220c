"""Reserved bytes of a course of allocations."""

from __future__ import annotations

from collections.abc import Iterable

from everybyte.allocator.caching import MIN_BLOCK, SMALL_REQUEST, SMALL_SEGMENT, CachingAllocator, ExpandableSegments, OutOfMemory
from everybyte.basics.units import round_up

Event = tuple[int, int]
STREAM_BITS = 40
"""The stream of an event is its key >> 40: memory is used again on the stream on which it was made alone."""


def peak_reserved(script: Iterable[Event], capacity: int = 0, *, expandable: bool = False) -> int:
    """The peak of reserved bytes when PyTorch's caching allocator serves `script`: (key, bytes) allocates, (key, 0) frees, (0, 0) empties the cache.

    On a device of `capacity` the allocator gives free segments back before it fails; a script that cannot be served at all is replayed
    without a limit, so that the answer says how much is missing. `expandable`: with expandable_segments:True, which unmaps what is free
    before it fails, so that a limit adds nothing.
    """
    streams: dict[int, list[Event]] = {}
    for event in script:
        streams.setdefault(event[0] >> STREAM_BITS, []).append(event)
    needed = 0
    for stream in streams.values():
        large, small = apart(stream)
        endless = _run(large, ExpandableSegments() if expandable else CachingAllocator())
        needed += endless.peak_reserved + small
    rows = next(iter(streams.values()), [])
    if expandable or len(streams) > 1 or not 0 < capacity < needed or endless.peak_allocated > capacity:
        return needed
    try:
        # near the limit every MiB counts, and both pools are given back together: all events are replayed
        return _run(rows, CachingAllocator(capacity)).peak_reserved
    except OutOfMemory:
        return needed


def apart(script: Iterable[Event]) -> tuple[list[Event], int]:
    """(events of the large pool, reserved bytes of the small one).

    Tensors of up to 1 MiB never share a segment with larger ones. Their 2 MiB segments are filled again and again, so that their pool is as
    large as they ever are together, in whole segments; replaying each of them would take half of the time for a few MiB.
    """
    large: list[Event] = []
    sizes: dict[int, int] = {}
    alive = peak = 0
    for event in script:
        key, nbytes = event
        if nbytes > SMALL_REQUEST:
            large.append(event)
        elif nbytes:
            size = round_up(nbytes, MIN_BLOCK)
            sizes[key] = size
            alive += size
            peak = max(peak, alive)
        elif key in sizes:
            alive -= sizes.pop(key)
        else:
            large.append(event)
    return large, round_up(peak, SMALL_SEGMENT)


def _run(rows: list[Event], allocator: CachingAllocator) -> CachingAllocator:
    malloc, free = allocator.malloc, allocator.free
    for key, nbytes in rows:
        if nbytes:
            malloc(key, nbytes)
        elif key:
            free(key)
        else:
            allocator.empty_cache()
    return allocator
