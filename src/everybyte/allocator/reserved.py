"""Reserved bytes of a course of allocations."""

from __future__ import annotations

from collections.abc import Iterable

from everybyte.allocator.caching import CachingAllocator, OutOfMemory


def peak_reserved(script: Iterable[tuple[int, int]], capacity: int = 0) -> int:
    """The peak of reserved bytes when PyTorch's caching allocator serves `script`: (key, bytes) allocates, (key, 0) frees, (0, 0) empties the cache.

    On a device of `capacity` the allocator gives free segments back before it fails; a script that cannot be served at all is replayed
    without a limit, so that the answer says how much is missing.
    """
    rows = list(script)
    endless = _run(rows, 0)
    limit_is_felt = 0 < capacity < endless.peak_reserved
    if not limit_is_felt or endless.peak_allocated > capacity:
        return endless.peak_reserved
    try:
        return _run(rows, capacity).peak_reserved
    except OutOfMemory:
        return endless.peak_reserved


def _run(rows: list[tuple[int, int]], capacity: int) -> CachingAllocator:
    allocator = CachingAllocator(capacity)
    malloc, free = allocator.malloc, allocator.free
    for key, nbytes in rows:
        if nbytes:
            malloc(key, nbytes)
        elif key:
            free(key)
        else:
            allocator.empty_cache()
    return allocator
