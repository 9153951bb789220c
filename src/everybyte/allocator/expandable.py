"""`expandable_segments:True`: each pool is one range of addresses whose pages are mapped when they are first used.

The rules are those of Note [Expandable Segments] and the code below it in c10/cuda/CUDACachingAllocator.cpp: pages have 20 MiB, those of the small
pool 2; a free block before unmapped addresses counts as large as it can grow, so that best fit takes it last; blocks are always split; on a full
device, or when asked, free pages are unmapped wherever they lie.
"""

from __future__ import annotations

from everybyte.allocator.caching import MIN_BLOCK, SEGMENT_ROUNDING, SMALL_SEGMENT, CachingAllocator
from everybyte.allocator.heap import ADDRESS_BITS, ADDRESS_MASK, Pool
from everybyte.basics.units import TiB, round_up

ENDLESS_RANGE = 16 * TiB


class ExpandableSegments(CachingAllocator):
    """The same allocator with segments that grow."""

    LARGE_REST = MIN_BLOCK
    EXPANDABLE = True

    def _page(self, pool: Pool) -> int:
        return SMALL_SEGMENT if pool.small else self.settings.segment_bytes

    def _pick(self, pool: Pool, size: int, index: int) -> int:
        """Of blocks that fit, the smallest; one that can grow is as large as it can become."""
        free = pool.free
        while index + 1 < len(free):
            size_now, size_grown = self._grown(pool, free[index])
            if size_now == size_grown or self._grown(pool, free[index + 1])[1] >= size_grown:
                break
            index += 1
        return super()._pick(pool, size, index)

    def _grown(self, pool: Pool, entry: int) -> tuple[int, int]:
        """Bytes of a free block now, and with the unmapped addresses behind it."""
        size = entry >> ADDRESS_BITS
        return size, size + pool.holes.get((entry & ADDRESS_MASK) + size, 0)

    def _obtain(self, pool: Pool, size: int, segment: int) -> tuple[int, int] | None:
        """(address, size) of the block at the lowest address that is free or can be mapped, or None where the device is full."""
        if self.reserved + segment > self.allowed:
            return None
        start = self._place(pool, size)
        while (mapped := self._sizes.get(start, 0)) < size:
            hole = start + mapped
            if not self._map(pool, hole, min(size - mapped, pool.holes[hole])):
                return None
        return start, self._take(pool, start)

    def _place(self, pool: Pool, size: int) -> int:
        """The lowest address from which on free blocks and unmapped addresses have room for `size` bytes."""
        for hole in sorted(pool.holes):
            start = end = self._ends.get(hole, hole)
            while end - start < size:
                step = self._sizes.get(end) or pool.holes.get(end)
                if step is None:
                    break
                end += step
            if end - start >= size:
                return start
        return self._new_range(pool)

    def _range(self, pool: Pool) -> int:
        """Bytes of addresses of a range: an eighth more than the device has."""
        return round_up(self.total + self.total // 8 if self.total else ENDLESS_RANGE, self._page(pool))

    def _new_range(self, pool: Pool) -> int:
        start = round_up(self._next_address, self._page(pool))
        pool.holes[start] = self._range(pool)
        self._next_address = start + self._range(pool) + SEGMENT_ROUNDING
        return start

    def _map(self, pool: Pool, hole: int, size: int) -> bool:
        """Maps the pages of the first `size` unmapped bytes at `hole`; False where the device does not have them."""
        mapped = round_up(size, self._page(pool))
        if self.reserved + mapped > self.capacity:
            return False
        left = pool.holes.pop(hole) - mapped
        if left:
            pool.holes[hole + mapped] = left
        self._merge(pool, hole, mapped)
        self._reserve(mapped)
        self._note("segment_map", hole, mapped, pool.stream)
        return True

    def _give_back(self, pool: Pool) -> None:
        """Unmaps the whole pages of free blocks."""
        page = self._page(pool)
        for entry in list(pool.free):
            start, size = entry & ADDRESS_MASK, entry >> ADDRESS_BITS
            first, last = round_up(start, page), (start + size) // page * page
            if first >= last:
                continue
            self._take(pool, start)
            if first > start:
                self._put(pool, start, first - start)
            if start + size > last:
                self._put(pool, last, start + size - last)
            self._add_hole(pool, first, last)
            self._reserve(first - last)
            self._note("segment_unmap", first, last - first, pool.stream)

    def _add_hole(self, pool: Pool, first: int, last: int) -> None:
        """Addresses that are not mapped any more, together with those before and after them; a range without any mapped page is given up."""
        last += pool.holes.pop(last, 0)
        before = next((start for start, size in pool.holes.items() if start + size == first), first)
        if last - before < self._range(pool):
            pool.holes[before] = last - before
        else:
            pool.holes.pop(before, None)
