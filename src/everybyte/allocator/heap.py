"""The blocks of memory that PyTorch's allocator holds: which are free, which live, how neighbours merge."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from everybyte.allocator.blocks import Action, Block, Name, Segment, State, segments_of

ADDRESS_BITS = 56
"""A free block is one number, its size above its address, so that pools sort as the allocator does."""
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1


class Pool:
    """The free blocks of one stream that serve small requests, or large ones."""

    __slots__ = ("free", "holes", "least_rest", "small", "stream")

    def __init__(self, stream: int, *, small: bool, least_rest: int) -> None:
        self.stream, self.small = stream, small
        self.least_rest = least_rest
        """What is left of a block is a block of its own from this size on."""
        self.free: list[int] = []
        self.holes: dict[int, int] = {}
        """Start -> size of addresses that are not mapped (expandable segments)."""


Held = tuple[int, int, int, Pool]
"""(address, size, requested, pool) of a block that is not free."""


class Heap:
    """Blocks by their addresses, and the sums of them. What is done is added to `log`, if there is one."""

    EXPANDABLE = False

    def __init__(self, log: list[Action] | None) -> None:
        self.log = log
        self.allocated = self.requested = self.reserved = 0
        self.peak_allocated = self.peak_requested = self.peak_reserved = 0
        self.event = self.peak_event = 0
        """Which event is served, as told by whoever replays them, and the one at which `reserved` was highest."""
        self._pools: tuple[dict[int, Pool], dict[int, Pool]] = ({}, {})
        """By stream: those of large requests, those of small ones."""
        self._sizes: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        """Start -> size and end -> start of all free blocks."""
        self._segments: dict[int, int] = {}
        """Start -> size of what was asked of the device at once."""
        self._live: dict[int, Held] = {}
        self._waiting: list[tuple[int, Held, set[int]]] = []
        """Freed, but still used on other streams: key, block, streams."""

    @property
    def inactive_split(self) -> int:
        """Free bytes beside living ones in segments that cannot be given back: fragmentation. As in PyTorch's statistics, expandable segments,
        whose free pages can be given back, have none."""
        return 0 if self.EXPANDABLE else sum(size for start, size in self._sizes.items() if self._segments.get(start) != size)

    def segments(self) -> tuple[Segment, ...]:
        """The block map of this moment, by address."""
        return segments_of(self._blocks(), expandable=self.EXPANDABLE)

    def _blocks(self) -> Iterator[tuple[Block, int, bool]]:
        active: State = "active_allocated"
        for key, (address, size, requested, pool) in self._live.items():
            yield Block(address, size, requested, active, key), pool.stream, pool.small
        for key, (address, size, requested, pool), _ in self._waiting:
            yield Block(address, size, requested, "active_pending_free", key), pool.stream, pool.small
        for pools in self._pools:
            for pool in pools.values():
                for entry in pool.free:
                    yield Block(entry & ADDRESS_MASK, entry >> ADDRESS_BITS, 0, "inactive", 0), pool.stream, pool.small

    def _put(self, pool: Pool, start: int, size: int) -> None:
        """Adds a free block."""
        self._sizes[start] = size
        self._ends[start + size] = start
        insort(pool.free, size << ADDRESS_BITS | start)

    def _merge(self, pool: Pool, start: int, size: int) -> int:
        """Adds a free block, together with the free ones before and after it; where it starts then."""
        end, free = start + size, pool.free
        before = self._ends.pop(start, None)
        if before is not None:
            del free[bisect_left(free, self._sizes.pop(before) << ADDRESS_BITS | before)]
            start = before
        after = self._sizes.pop(end, None)
        if after is not None:
            del free[bisect_left(free, after << ADDRESS_BITS | end)]
            end += after
        self._sizes[start] = end - start
        self._ends[end] = start
        insort(free, (end - start) << ADDRESS_BITS | start)
        return start

    def _take(self, pool: Pool, start: int) -> int:
        """Takes a free block out of its pool; its size."""
        size = self._sizes.pop(start)
        del self._ends[start + size]
        del pool.free[bisect_left(pool.free, size << ADDRESS_BITS | start)]
        return size

    def _reserve(self, change: int) -> None:
        self.reserved += change
        if self.reserved > self.peak_reserved:
            self.peak_reserved, self.peak_event = self.reserved, self.event

    def _note(self, name: Name, address: int, size: int, stream: int, key: int = 0) -> None:
        if self.log is not None:
            self.log.append(Action(name, address, size, stream, key, self.event))
