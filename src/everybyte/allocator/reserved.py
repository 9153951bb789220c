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

    Each stream has pools of its own, so that their peaks add up. On a device of `capacity` the allocator gives back what is free on any stream
    before it fails: one stream is replayed with that limit; several streams, or expandable segments, reach the limit where all that lives fits.
    A script that cannot be served at all is replayed without a limit, so that the answer says how much is missing.
    """
    events = list(script)
    streams = _by_stream(events)
    needed = 0
    for rows in streams:
        large, small = apart(rows)
        needed += _run(large, ExpandableSegments() if expandable else CachingAllocator()) + small
    if not 0 < capacity < needed or peak_living(events) > capacity:
        return needed
    if expandable or len(streams) > 1:
        return capacity
    try:
        # near the limit every MiB counts, and both pools are given back together: all events are replayed
        return _run(streams[0], CachingAllocator(capacity))
    except OutOfMemory:
        return needed


def peak_living(events: Iterable[Event]) -> int:
    """The largest sum of what lives at once, on all streams."""
    alive: dict[int, int] = {}
    total = peak = 0
    for key, nbytes in events:
        if nbytes:
            alive[key] = nbytes
            total += nbytes
            peak = max(peak, total)
        else:
            total -= alive.pop(key, 0)
    return peak


def _by_stream(events: list[Event]) -> list[list[Event]]:
    """The events of each stream; the cache of all is emptied together."""
    if not events or max(events)[0] >> STREAM_BITS == 0:
        return [events]
    found: dict[int, list[Event]] = {}
    for event in events:
        if event[0]:
            found.setdefault(event[0] >> STREAM_BITS, []).append(event)
        else:
            for rows in found.values():
                rows.append(event)
    return list(found.values())


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
            sizes[key] = size = -(-nbytes // MIN_BLOCK) * MIN_BLOCK
            alive += size
            peak = max(peak, alive)
        elif key in sizes:
            alive -= sizes.pop(key)
        else:
            large.append(event)
    return large, round_up(peak, SMALL_SEGMENT)


def _run(rows: list[Event], allocator: CachingAllocator) -> int:
    """The peak of reserved bytes of an allocator that has served the events."""
    allocator.run(rows)
    return allocator.peak_reserved
