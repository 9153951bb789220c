"""The peak of one pool of PyTorch's allocator with default settings, and nothing else.

An answer replays some ten thousand events, and this loop is most of its time: what would be functions of their own stands in it. CachingAllocator
and ExpandableSegments say what is done here and why; a test holds that the loop comes to the same bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from everybyte.allocator.caching import MIN_BLOCK, OWN_SEGMENT, SEGMENT_ROUNDING, SMALL_REQUEST
from everybyte.allocator.heap import ADDRESS_BITS, ADDRESS_MASK
from everybyte.allocator.settings import SEGMENT
from everybyte.basics.units import TiB

RANGE = 64 * TiB
"""Addresses of the expandable segment: more than what ENDLESS_LIVING can be scattered over."""
ENDLESS_LIVING = 16 * TiB
"""No device holds as much at once, and the addresses of this loop end soon above it."""


class _Block:
    __slots__ = ("address", "free", "next", "prev", "size")

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size, self.free = address, size, False
        self.prev = self.next = EDGE


EDGE: _Block = object.__new__(_Block)
"""Before the first block of a segment and after the last one; never free."""
EDGE.free = False


def large_peak(events: Iterable[tuple[int, int]], *, expandable: bool = False) -> int:
    """The peak of reserved bytes of requests above 1 MiB on one stream of an endless device: (key, bytes) allocates, (key, 0) frees, and (0, 0)
    empties the cache, which expandable segments are not asked here.

    Expandable, the pool is one free block whose end was never used: the largest one, which best fit takes last, as the allocator does.
    """
    least_rest = MIN_BLOCK if expandable else SMALL_REQUEST + 1
    at, live = {0: _Block(0, RANGE)}, dict[int, _Block]()
    pool = [RANGE << ADDRESS_BITS] if expandable else []
    top = reserved = peak = 0
    for key, nbytes in events:
        if nbytes:
            size = -(-nbytes // MIN_BLOCK) * MIN_BLOCK
            index = bisect_left(pool, size << ADDRESS_BITS)
            if index < len(pool):
                block = at[pool.pop(index) & ADDRESS_MASK]
                block.free = False
            else:
                segment = SEGMENT if size < OWN_SEGMENT else -(-size // SEGMENT_ROUNDING) * SEGMENT_ROUNDING
                at[top] = block = _Block(top, segment)
                top += segment + SEGMENT_ROUNDING
                reserved += segment
                peak = max(peak, reserved)
            left = block.size - size
            if left >= least_rest:
                address, after = block.address + size, block.next
                at[address] = rest = after.prev = _Block(address, left)
                insort(pool, left << ADDRESS_BITS | address)
                rest.free, rest.prev, rest.next = True, block, after
                block.size, block.next = size, rest
            live[key] = block
            if expandable and block.address + size > peak:
                peak = -(-(block.address + size) // SEGMENT) * SEGMENT
        elif key:
            block = live.pop(key)
            before, after = block.prev, block.next
            if before.free:
                del pool[bisect_left(pool, before.size << ADDRESS_BITS | before.address)]
                before.size += block.size
                before.next, after.prev = after, before
                block = before
            if after.free:
                del pool[bisect_left(pool, after.size << ADDRESS_BITS | after.address)]
                block.size += after.size
                block.next = after.next
                block.next.prev = block
            block.free = True
            insort(pool, block.size << ADDRESS_BITS | block.address)
        else:
            whole = {entry for entry in pool if at[entry & ADDRESS_MASK].prev is EDGE is at[entry & ADDRESS_MASK].next}
            reserved -= sum(entry >> ADDRESS_BITS for entry in whole)
            pool = [entry for entry in pool if entry not in whole]
    return peak
