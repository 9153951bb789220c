"""PyTorch's CUDA caching allocator: how many bytes it reserves for a row of allocations and frees.

The rules are those of c10/cuda/CUDACachingAllocator.cpp with default settings on one stream: sizes are multiples of 512 B; requests of up to
1 MiB are served from 2 MiB segments, larger ones from 20 MiB segments, from 10 MiB on from segments of their own in multiples of 2 MiB; the
smallest free block that is large enough is taken, lowest address first, and split if the rest is worth it; neighbours merge when freed;
segments are given back only when the device is full.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

from everybyte.basics.units import MiB

MIN_BLOCK = 512
SMALL_REQUEST = MiB
SMALL_SEGMENT = 2 * MiB
LARGE_SEGMENT = 20 * MiB
OWN_SEGMENT = 10 * MiB
SEGMENT_ROUNDING = 2 * MiB
ADDRESS_BITS = 50
"""A free block is one number, its size above its address, so that pools sort as the allocator does."""
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1


class OutOfMemory(Exception):
    """The device is full even after all free segments were given back."""


class _Block:
    __slots__ = ("address", "free", "next", "pool", "prev", "size")

    def __init__(self, address: int, size: int, pool: list[int]) -> None:
        self.address, self.size, self.pool, self.free = address, size, pool, False
        self.prev: _Block | None = None
        self.next: _Block | None = None


class CachingAllocator:
    """Simulates malloc and free; `reserved` and `peak_reserved` are bytes. `capacity` 0: an endless device."""

    LEAST_REST = SMALL_REQUEST + 1
    """A rest of a large block that is worth a block of its own."""

    _used: Callable[[_Block], None] | None = None
    """Told each block that is given out, where somebody must know."""

    __slots__ = ("_at", "_large", "_live", "_next_address", "_small", "capacity", "peak_reserved", "reserved", "retries")

    def __init__(self, capacity: int = 0) -> None:
        self.capacity = capacity
        self.reserved = self.peak_reserved = 0
        self.retries = 0
        self._small: list[int] = []
        self._large: list[int] = []
        self._at: dict[int, _Block] = {}
        self._live: dict[int, _Block] = {}
        self._next_address = 0

    @property
    def allocated(self) -> int:
        """Bytes of the blocks in use."""
        return sum(block.size for block in self._live.values())

    def malloc(self, key: int, nbytes: int) -> None:
        """Allocates `nbytes` > 0 under a key. Raises OutOfMemory when a device of `capacity` cannot hold it."""
        self.run(((key, nbytes),))

    def free(self, key: int) -> None:
        """Frees what was allocated under a key."""
        self.run(((key, 0),))

    def run(self, script: Iterable[tuple[int, int]]) -> None:
        """Serves events: (key, bytes) allocates, (key, 0) frees, (0, 0) empties the cache. Raises OutOfMemory as `malloc`.

        An answer replays some ten thousand events, and this loop is half of its time: what would be functions of their own stands in it.
        """
        at, live, least_rest, used = self._at, self._live, self.LEAST_REST, self._used
        for key, nbytes in script:
            if nbytes:
                size = -(-nbytes // MIN_BLOCK) * MIN_BLOCK
                pool = self._small if size <= SMALL_REQUEST else self._large
                index = bisect_left(pool, size << ADDRESS_BITS)
                block = at[pool.pop(index) & ADDRESS_MASK] if index < len(pool) else self._new_segment(size, pool)
                block.free = False
                left = block.size - size
                if left >= (MIN_BLOCK if size <= SMALL_REQUEST else least_rest):
                    rest = _Block(block.address + size, left, pool)
                    at[rest.address] = rest
                    insort(pool, left << ADDRESS_BITS | rest.address)
                    after = block.next
                    rest.free, rest.prev, rest.next = True, block, after
                    block.size, block.next = size, rest
                    if after is not None:
                        after.prev = rest
                live[key] = block
                if used is not None:
                    used(block)
            elif key:
                block = live.pop(key)
                pool, before, after = block.pool, block.prev, block.next
                if before is not None and before.free:
                    del pool[bisect_left(pool, before.size << ADDRESS_BITS | before.address)]
                    before.size += block.size
                    before.next = after
                    if after is not None:
                        after.prev = before
                    block = before
                if after is not None and after.free:
                    del pool[bisect_left(pool, after.size << ADDRESS_BITS | after.address)]
                    block.size += after.size
                    block.next = after.next
                    if after.next is not None:
                        after.next.prev = block
                block.free = True
                insort(pool, block.size << ADDRESS_BITS | block.address)
            else:
                self.empty_cache()

    def empty_cache(self) -> None:
        """Gives segments back that hold no living block."""
        for pool in (self._small, self._large):
            blocks = [self._at[entry & ADDRESS_MASK] for entry in pool]
            self.reserved -= sum(b.size for b in blocks if b.prev is None and b.next is None)
            pool[:] = [b.size << ADDRESS_BITS | b.address for b in blocks if b.prev is not None or b.next is not None]

    def _new_segment(self, size: int, pool: list[int]) -> _Block:
        if size <= SMALL_REQUEST:
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
        block = _Block(self._next_address, segment, pool)
        self._at[block.address] = block
        self._next_address += segment + SEGMENT_ROUNDING
        return block


class ExpandableSegments(CachingAllocator):
    """The same with `expandable_segments:True`: each pool is one range of addresses whose pages are mapped when they are first used.

    The unmapped tail is the largest free block, so that best fit takes it last; blocks are always split (should_split), and only whole pages
    of 20 MiB (2 MiB in the small pool) at the end stay unused.
    """

    __slots__ = ("_mapped",)

    LEAST_REST = MIN_BLOCK
    RANGE = 1 << (ADDRESS_BITS - 2)

    def __init__(self, capacity: int = 0) -> None:
        super().__init__(capacity)
        self._mapped: dict[int, int] = {}
        for start, pool in ((0, self._small), (self.RANGE, self._large)):
            tail = _Block(start, self.RANGE, pool)
            tail.free = True
            self._at[start] = tail
            pool.append(tail.size << ADDRESS_BITS | start)
            self._mapped[start] = 0

    def _used(self, block: _Block) -> None:
        """Maps the pages of a block where they are used for the first time."""
        start, page = (0, SMALL_SEGMENT) if block.address < self.RANGE else (self.RANGE, LARGE_SEGMENT)
        end = block.address - start + block.size
        if end > self._mapped[start]:
            self._mapped[start] = -(-end // page) * page
            self.reserved = sum(self._mapped.values())
            self.peak_reserved = max(self.peak_reserved, self.reserved)

    def empty_cache(self) -> None:
        """Unmaps the free pages behind the last living block of each pool."""
        for start, page in ((0, SMALL_SEGMENT), (self.RANGE, LARGE_SEGMENT)):
            ends = (b.address - start + b.size for b in self._live.values() if start <= b.address < start + self.RANGE)
            self._mapped[start] = -(-max(ends, default=0) // page) * page
        self.reserved = sum(self._mapped.values())
