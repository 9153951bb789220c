"""PyTorch's CUDA caching allocator: how many bytes it reserves for a row of allocations and frees.

The rules are those of c10/cuda/CUDACachingAllocator.cpp with default settings on one stream: sizes are multiples of 512 B; requests of up to
1 MiB are served from 2 MiB segments, larger ones from 20 MiB segments, from 10 MiB on from segments of their own in multiples of 2 MiB; the
smallest free block that is large enough is taken, lowest address first, and split if the rest is worth it; neighbours merge when freed;
segments are given back only when the device is full.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from everybyte.basics.units import MiB

MIN_BLOCK = 512
SMALL_REQUEST = MiB
SMALL_SEGMENT = 2 * MiB
LARGE_SEGMENT = 20 * MiB
OWN_SEGMENT = 10 * MiB
SEGMENT_ROUNDING = 2 * MiB


class OutOfMemory(Exception):
    """The device is full even after all free segments were given back."""


class _Block:
    __slots__ = ("address", "free", "next", "prev", "size")

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size, self.free = address, size, True
        self.prev: _Block | None = None
        self.next: _Block | None = None


class CachingAllocator:
    """Simulates malloc and free; `reserved`, `allocated` and their peaks are bytes. `capacity` 0: an endless device."""

    def __init__(self, capacity: int = 0) -> None:
        self.capacity = capacity
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self.retries = 0
        # free blocks of the small and of the large pool, sorted by size, then address
        self._pools: dict[bool, list[tuple[int, int, _Block]]] = {True: [], False: []}
        self._live: dict[object, tuple[_Block, bool]] = {}
        self._next_address = 0

    def malloc(self, key: object, nbytes: int) -> None:
        """Allocates `nbytes` under a key. Raises OutOfMemory when a device of `capacity` cannot hold it."""
        if nbytes <= 0:
            return
        size = max(-(-nbytes // MIN_BLOCK) * MIN_BLOCK, MIN_BLOCK)
        small = size <= SMALL_REQUEST
        block = self._take(size, small) or self._new_segment(size, small)
        rest = block.size - size
        if rest >= MIN_BLOCK if small else rest > SMALL_REQUEST:
            self._split(block, size, small)
        block.free = False
        self._live[key] = (block, small)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)

    def free(self, key: object) -> None:
        """Frees what was allocated under a key; unknown keys are ignored."""
        found = self._live.pop(key, None)
        if found is None:
            return
        block, small = found
        pool = self._pools[small]
        self.allocated -= block.size
        block.free = True
        before, after = block.prev, block.next
        if before is not None and before.free:
            self._remove(pool, before)
            before.size += block.size
            before.next = after
            if after is not None:
                after.prev = before
            block = before
        if after is not None and after.free:
            self._remove(pool, after)
            block.size += after.size
            block.next = after.next
            if after.next is not None:
                after.next.prev = block
        insort(pool, (block.size, block.address, block))

    def empty_cache(self) -> None:
        """Gives segments back that hold no living block."""
        for small, pool in self._pools.items():
            whole = [entry for entry in pool if entry[2].prev is None and entry[2].next is None]
            self.reserved -= sum(entry[0] for entry in whole)
            self._pools[small] = [entry for entry in pool if entry[2].prev is not None or entry[2].next is not None]

    def _take(self, size: int, small: bool) -> _Block | None:
        pool = self._pools[small]
        index = bisect_left(pool, (size, -1))
        return pool.pop(index)[2] if index < len(pool) else None

    def _new_segment(self, size: int, small: bool) -> _Block:
        if small:
            segment = SMALL_SEGMENT
        elif size < OWN_SEGMENT:
            segment = LARGE_SEGMENT
        else:
            segment = -(-size // SEGMENT_ROUNDING) * SEGMENT_ROUNDING
        if self.capacity and self.reserved + segment > self.capacity:
            self.empty_cache()
            self.retries += 1
            if self.reserved + segment > self.capacity:
                raise OutOfMemory(f"{size} bytes do not fit beside {self.reserved} reserved bytes on a device of {self.capacity}")
        self.reserved += segment
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        block = _Block(self._next_address, segment)
        self._next_address += segment + SEGMENT_ROUNDING
        return block

    def _split(self, block: _Block, size: int, small: bool) -> None:
        rest = _Block(block.address + size, block.size - size)
        rest.prev, rest.next = block, block.next
        if block.next is not None:
            block.next.prev = rest
        block.next, block.size = rest, size
        insort(self._pools[small], (rest.size, rest.address, rest))

    @staticmethod
    def _remove(pool: list[tuple[int, int, _Block]], block: _Block) -> None:
        del pool[bisect_left(pool, (block.size, block.address))]
