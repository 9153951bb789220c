"""PyTorch's allocator once more, the slow way: everything is worked out anew from the list of what lives, with no index and no order kept."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from everybyte.basics.units import MiB, round_up


class Living(NamedTuple):
    """A range of addresses of one pool."""

    address: int
    size: int
    stream: int
    small: bool


class Full(Exception):
    """The device is full."""


class PlainNative:
    """Segments that are never divided, and what lives in them."""

    def __init__(self, capacity: int = 0, whole: int = 0, slack: int = 20 * MiB) -> None:
        self.capacity, self.whole, self.slack = capacity or 1 << 60, whole or 1 << 60, slack
        self.segments: list[Living] = []
        self.living: dict[int, Living] = {}
        self.top = 0
        self.retries = 0

    @property
    def reserved(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    def gaps(self, segment: Living) -> list[tuple[int, int]]:
        """(size, address) of what is free in a segment."""
        inside = sorted((b.address, b.size) for b in self.living.values() if segment.address <= b.address < segment.address + segment.size)
        found, at = [], segment.address
        for address, size in [*inside, (segment.address + segment.size, 0)]:
            if address > at:
                found.append((address - at, at))
            at = address + size
        return found

    def free_blocks(self, stream: int, small: bool) -> list[tuple[int, int]]:
        """(size, address) of all that is free in a pool."""
        return [gap for s in self.segments if (s.stream, s.small) == (stream, small) for gap in self.gaps(s)]

    def malloc(self, key: int, nbytes: int) -> None:
        """Allocates under a key. Raises Full."""
        size, stream = round_up(nbytes, 512), key >> 40
        small = size <= MiB
        fitting = sorted(gap for gap in self.free_blocks(stream, small) if gap[0] >= size)
        if fitting and not (fitting[0][0] >= self.whole > size) and not (size >= self.whole and fitting[0][0] >= size + self.slack):
            block, address = fitting[0]
        else:
            block, address = self.segment(stream, small, size)
        rest = block - size
        splits = rest >= 512 if small else size < self.whole and rest > MiB
        self.living[key] = Living(address, size if splits else block, stream, small)

    def segment(self, stream: int, small: bool, size: int) -> tuple[int, int]:
        """(size, address) of a new segment."""
        asked = 2 * MiB if small else 20 * MiB if size < 10 * MiB else round_up(size, 2 * MiB)
        if self.reserved + asked > self.capacity and not self.give_whole_back(stream, small, size, asked):
            self.retries += 1
            self.empty_cache()
            if self.reserved + asked > self.capacity:
                raise Full
        address, self.top = self.top, self.top + asked + 2 * MiB
        self.segments.append(Living(address, asked, stream, small))
        return asked, address

    def give_whole_back(self, stream: int, small: bool, size: int, asked: int) -> bool:
        """Gives one large block back, or as many of the largest as it takes; whether there is room then."""
        least = max(size, self.whole)
        cached = sorted(gap for gap in self.free_blocks(stream, small) if gap[0] >= self.whole)
        enough = [gap for gap in cached if gap[0] >= least][:1]
        given = 0
        for gap in enough or reversed(cached):
            if given < least:
                given += gap[0]
                self.segments = [s for s in self.segments if s.address != gap[1]]
        return given >= least and self.reserved + asked <= self.capacity

    def empty_cache(self) -> None:
        """Gives free segments back."""
        self.segments = [s for s in self.segments if [(s.size, s.address)] != self.gaps(s)]


class PlainExpandable:
    """Ranges of addresses, the pages of them that are mapped, and what lives there."""

    RANGE = 1 << 44

    def __init__(self, capacity: int = 0) -> None:
        self.capacity = capacity or 1 << 60
        self.ranges: list[tuple[int, bool]] = []
        self.pages: dict[tuple[int, bool], set[int]] = {}
        self.living: dict[int, Living] = {}
        self.retries = 0

    @staticmethod
    def page(small: bool) -> int:
        """Bytes of a page."""
        return 2 * MiB if small else 20 * MiB

    @property
    def reserved(self) -> int:
        """Bytes of all mapped pages."""
        return sum(self.page(small) * len(pages) for (_, small), pages in self.pages.items())

    def runs(self, stream: int, small: bool, mapped: bool) -> list[tuple[int, int]]:
        """(start, end) of free addresses of a range, mapped or not."""
        page, pages = self.page(small), self.pages.get((stream, small), set())
        cuts = sorted({0, self.RANGE // page, *pages, *(p + 1 for p in pages)})
        found: list[tuple[int, int]] = []
        for first, last in pairwise(cuts):
            if (first in pages) == mapped:
                joined = found and found[-1][1] == first * page
                found[-1:] = [(found[-1][0], last * page)] if joined else [*found[-1:], (first * page, last * page)]
        for block in sorted(b for b in self.living.values() if (b.stream, b.small) == (stream, small)):
            end = block.address + block.size
            found = [piece for a, b in found for piece in ([(a, b)] if b <= block.address or end <= a else [(a, block.address), (end, b)])]
        return [(a, b) for a, b in found if a < b]

    def malloc(self, key: int, nbytes: int) -> None:
        """Allocates under a key. Raises Full."""
        size, stream = round_up(nbytes, 512), key >> 40
        small = size <= MiB
        self.pages.setdefault((stream, small), set())
        start = self.fitting(stream, small, size)
        if start is None and (start := self.grown(stream, small, size)) is None:
            self.retries += 1
            self.empty_cache()
            if (start := self.grown(stream, small, size)) is None:
                raise Full
        self.living[key] = Living(start, size, stream, small)

    def fitting(self, stream: int, small: bool, size: int) -> int | None:
        """The mapped run to take, if one is large enough as it is: smallest first, one that can grow only if no other is smaller than what it can become."""
        behind = dict(self.runs(stream, small, mapped=False))
        order = sorted((b - a, a, b - a + (behind[b] - b if b in behind else 0)) for a, b in self.runs(stream, small, mapped=True) if b - a >= size)
        return next((here[1] for here, after in pairwise(order) if after[2] >= here[2]), order[-1][1] if order else None)

    def grown(self, stream: int, small: bool, size: int) -> int | None:
        """The lowest place where free and unmapped addresses are long enough, with its pages mapped."""
        unmapped, page = self.runs(stream, small, mapped=False), self.page(small)
        free = sorted([*unmapped, *self.runs(stream, small, mapped=True)])
        starts = {b: a for a, b in free}
        for hole, _ in unmapped:
            start = starts[hole] if hole in starts and starts[hole] not in dict(unmapped) else hole
            end = start
            while end - start < size and end in dict(free):
                end = dict(free)[end]
            if end - start < size:
                continue
            for first, last in unmapped:
                wanted = range(first // page, min(last, round_up(start + size, page)) // page)
                if start <= first < start + size and not self.map(stream, small, wanted):
                    return None
            return start
        raise AssertionError("a range is longer than any script")

    def map(self, stream: int, small: bool, pages: range) -> bool:
        """Maps pages, if the device has as many."""
        if self.reserved + len(pages) * self.page(small) > self.capacity:
            return False
        self.pages[stream, small] |= set(pages)
        return True

    def empty_cache(self) -> None:
        """Unmaps the pages that are free as a whole."""
        for (stream, small), pages in self.pages.items():
            page = self.page(small)
            for start, end in self.runs(stream, small, mapped=True):
                pages -= set(range(round_up(start, page) // page, end // page))
