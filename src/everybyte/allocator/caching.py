"""PyTorch's CUDA caching allocator: how many bytes it reserves for a row of allocations and frees, and where each of them lies.

The rules are those of c10/cuda/CUDACachingAllocator.cpp. Sizes are multiples of 512 B; requests of up to 1 MiB are served from 2 MiB segments,
larger ones from 20 MiB segments, from 10 MiB on from segments of their own in multiples of 2 MiB; memory is used again on the stream on which
it was made alone; the smallest free block that is large enough is taken, lowest address first, and split if the rest is worth it; neighbours
merge when freed; segments are given back when the device is full, or when asked for.
"""

from __future__ import annotations

from bisect import bisect_left

from everybyte.allocator.blocks import Action
from everybyte.allocator.heap import ADDRESS_BITS, ADDRESS_MASK, Heap, Held, Pool
from everybyte.allocator.settings import DEFAULT, ENDLESS, AllocatorSettings
from everybyte.basics.allocations import STREAM_BITS
from everybyte.basics.units import MiB, round_up

MIN_BLOCK = 512
SMALL_REQUEST = MiB
SMALL_SEGMENT = 2 * MiB
OWN_SEGMENT = 10 * MiB
SEGMENT_ROUNDING = 2 * MiB


class OutOfMemory(Exception):
    """The device is full even after all free segments were given back."""

    def __init__(self, size: int, reserved: int, limit: int) -> None:
        super().__init__(f"{size} bytes do not fit beside {reserved} reserved bytes on a device of {limit}")
        self.size, self.reserved, self.limit = size, reserved, limit


class CachingAllocator(Heap):
    """Simulates malloc and free; `reserved`, `allocated`, `requested` and their peaks are bytes.

    `capacity` is what the device can give, 0: without end; `total` is the size of the whole device, of which the settings may allow a part.
    """

    LARGE_REST = SMALL_REQUEST + 1
    """A rest of a large block that is worth a block of its own."""

    def __init__(self, settings: AllocatorSettings = DEFAULT, capacity: int = 0, *, total: int = 0, log: list[Action] | None = None) -> None:
        super().__init__(log)
        self.settings, self.capacity, self.total = settings, capacity or ENDLESS, total or capacity
        self.allowed = settings.allowed_bytes(self.total) or ENDLESS
        self.retries = 0
        self._next_address = 0
        self._uses: dict[int, set[int]] = {}
        """Key -> other streams that use what it holds."""
        self._unsplit = (not self.EXPANDABLE and settings.max_split_bytes) or ENDLESS
        self._collects = self.allowed < ENDLESS and settings.collect_above > 0
        self._searches = 0
        self._ages: dict[int, int] = {}
        """Start of a free block -> number of searches among large ones before it was freed."""
        self._picks = self.EXPANDABLE or self._collects or settings.max_split_bytes > 0
        """Whether the smallest block that fits may not be the one to take."""

    def malloc(self, key: int, nbytes: int) -> None:
        """Allocates `nbytes` > 0 under a key, on the stream key >> STREAM_BITS. Raises OutOfMemory when the device cannot hold it."""
        size = self._rounded(nbytes) if self.settings.roundup_divisions else -(-nbytes // MIN_BLOCK) * MIN_BLOCK
        stream, small = key >> STREAM_BITS, size <= SMALL_REQUEST
        pool = self._pools[small].get(stream) or self._new_pool(stream, small)
        free = pool.free
        index = bisect_left(free, size << ADDRESS_BITS)
        if self._picks:
            index = self._pick(pool, size, index)
        if index < len(free):
            address = free.pop(index) & ADDRESS_MASK
            block = self._sizes.pop(address)
            del self._ends[address + block]
        else:
            address, block = self._fresh(pool, size, key)
        if block - size >= pool.least_rest and size < self._unsplit:
            self._put(pool, address + size, block - size)
            block = size
        self._live[key] = address, block, nbytes, pool
        self.allocated += block
        self.requested += nbytes
        if self.allocated > self.peak_allocated:  # noqa: PLR1730  # max() takes three times as long, and this runs for every request
            self.peak_allocated = self.allocated
        if self.requested > self.peak_requested:  # noqa: PLR1730
            self.peak_requested = self.requested
        if self.log is not None:
            self._note("alloc", address, nbytes, stream, key)

    def free(self, key: int) -> None:
        """Frees what was allocated under a key. Where other streams use it, the block stays until these are done."""
        held = self._live.pop(key)
        self.allocated -= held[1]
        if self.log is not None:
            self._note("free_requested", held[0], held[2], held[3].stream, key)
        if self._uses and key in self._uses:
            self._waiting.append((key, held, self._uses.pop(key)))
        else:
            self._complete(key, held)

    def use(self, key: int, stream: int) -> None:
        """Says that work on another stream uses what a key holds (Tensor.record_stream)."""
        if stream != key >> STREAM_BITS:
            self._uses.setdefault(key, set()).add(stream)

    def finish(self, stream: int | None = None) -> None:
        """Says that a stream, or every one, has done all that it was given: blocks that waited for it alone are free."""
        waiting, self._waiting = self._waiting, []
        for key, held, uses in waiting:
            left = uses - {stream} if stream is not None else ()
            if left:
                self._waiting.append((key, held, set(left)))
            else:
                self._complete(key, held)

    def empty_cache(self) -> None:
        """Waits for all streams, then gives back what holds no living block."""
        self.finish()
        for pools in self._pools:
            for stream in sorted(pools):
                self._give_back(pools[stream])

    def _complete(self, key: int, held: Held) -> None:
        address, size, nbytes, pool = held
        self.requested -= nbytes
        start = self._merge(pool, address, size)
        if self._collects:
            self._ages[start] = self._searches
        if self.log is not None:
            self._note("free_completed", address, nbytes, pool.stream, key)

    def _rounded(self, nbytes: int) -> int:
        """To multiples of 512, or to one of the steps between two powers of two."""
        divisions = self.settings.roundup_divisions[min(max(nbytes.bit_length() - 21, 0), 15)]
        if divisions > 1 and nbytes > MIN_BLOCK * divisions:
            return round_up(nbytes, (1 << nbytes.bit_length() - 1) // divisions)
        return round_up(nbytes, MIN_BLOCK)

    def _new_pool(self, stream: int, small: bool) -> Pool:
        pool = self._pools[small][stream] = Pool(stream, small=small, least_rest=MIN_BLOCK if small else self.LARGE_REST)
        return pool

    def _pick(self, pool: Pool, size: int, index: int) -> int:
        """Which free block to take, where `index` is the smallest that fits; the number of blocks: none."""
        self._searches += not pool.small
        whole = self.settings.max_split_bytes
        if whole and index < len(pool.free):
            block = pool.free[index] >> ADDRESS_BITS
            if size < whole <= block or (size >= whole and block >= size + self.settings.max_rounding_bytes):
                return len(pool.free)
        return index

    def _fresh(self, pool: Pool, size: int, key: int) -> tuple[int, int]:
        """(address, size) of a block that the device gives, after giving back what is cached if it must."""
        segment = self._segment_bytes(size)
        if self._collects:
            self._collect()
        found = self._obtain(pool, size, segment)
        if found is None and self._give_back_whole(pool, size):
            found = self._obtain(pool, size, segment)
        if found is None:
            self.empty_cache()
            self.retries += 1
            found = self._obtain(pool, size, segment)
        if found is None:
            self._note("oom", self.capacity - self.reserved, size, pool.stream, key)
            raise OutOfMemory(size, self.reserved, min(self.capacity, self.allowed))
        return found

    def _segment_bytes(self, size: int) -> int:
        if size <= SMALL_REQUEST:
            return SMALL_SEGMENT
        return self.settings.segment_bytes if size < OWN_SEGMENT else round_up(size, SEGMENT_ROUNDING)

    def _obtain(self, pool: Pool, size: int, segment: int) -> tuple[int, int] | None:
        """(address, size) of a new segment, or None where the device is full."""
        if self.reserved + segment > min(self.capacity, self.allowed):
            return None
        address = self._next_address
        self._next_address += segment + SEGMENT_ROUNDING
        self._segments[address] = segment
        self._reserve(segment)
        self._note("segment_alloc", address, segment, pool.stream)
        return address, segment

    def _give_back(self, pool: Pool) -> None:
        """Gives the segments of a pool back that are free as a whole."""
        for entry in list(pool.free):
            if self._segments.get(entry & ADDRESS_MASK) == entry >> ADDRESS_BITS:
                self._release(pool, entry & ADDRESS_MASK)

    def _give_back_whole(self, pool: Pool, size: int) -> bool:
        """Gives blocks back that are never split: one that is large enough, or the largest ones; whether that was enough."""
        whole = self.settings.max_split_bytes
        if not whole or self.EXPANDABLE:
            return False
        least = max(size, whole)
        index = bisect_left(pool.free, least << ADDRESS_BITS)
        if index < len(pool.free):
            self._release(pool, pool.free[index] & ADDRESS_MASK)
            return True
        released = 0
        while released < least and pool.free and pool.free[-1] >> ADDRESS_BITS >= whole:
            released += self._release(pool, pool.free[-1] & ADDRESS_MASK)
        return released >= least

    def _release(self, pool: Pool, start: int) -> int:
        size = self._take(pool, start)
        del self._segments[start]
        self._reserve(-size)
        self._note("segment_free", start, size, pool.stream)
        return size

    def _collect(self) -> None:
        """Gives free large segments back, those that were not used for longer than the average first, until enough is below the threshold."""
        too_much = self.reserved - int(self.settings.collect_above * self.allowed)
        old = {
            start: (pool, self._searches - self._ages[start])
            for _, pool in sorted(self._pools[False].items())
            for entry in pool.free
            if self._segments.get(start := entry & ADDRESS_MASK) == entry >> ADDRESS_BITS
        }
        while too_much > 0 and old:
            average = sum(age for _, age in old.values()) / len(old)
            for start, (pool, age) in list(old.items()):
                if age >= average:
                    too_much -= self._release(pool, start)
                    del old[start]
