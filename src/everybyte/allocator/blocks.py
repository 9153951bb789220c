"""What lies where in the memory that PyTorch's allocator holds, and what it did, in the words of torch.cuda.memory._snapshot()."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Literal, NamedTuple

State = Literal["active_allocated", "active_pending_free", "inactive"]
Name = Literal["alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom"]


class Block(NamedTuple):
    """A piece of a segment: lived in by the request `key`, waiting for another stream, or free."""

    address: int
    size: int
    requested: int
    state: State
    key: int


class Segment(NamedTuple):
    """Memory that was asked of the device at once; with expandable segments, pages that follow one another."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    blocks: tuple[Block, ...]

    @property
    def active(self) -> int:
        """Bytes of blocks that are not free."""
        return sum(block.size for block in self.blocks if block.state != "inactive")


class Action(NamedTuple):
    """Something the allocator did while it served an event.

    `size` is what was requested for blocks, and whole segments or pages otherwise; an `oom` has the free bytes of the device as its address.
    `key` is that of the request that was served, allocated or freed.
    """

    name: Name
    address: int
    size: int
    stream: int
    key: int
    event: int


def segments_of(blocks: Iterable[tuple[Block, int, bool]], *, expandable: bool) -> tuple[Segment, ...]:
    """The segments that (block, stream, small) make up, by address: blocks of one segment follow one another, those of two never do."""
    rows = sorted(blocks)
    starts = [0, *(i for i, (a, b) in enumerate(pairwise(rows), 1) if a[0].address + a[0].size != b[0].address), len(rows)]
    found = []
    for first, last in pairwise(starts):
        if first == last:
            continue
        members = tuple(row[0] for row in rows[first:last])
        _, stream, small = rows[first]
        found.append(Segment(members[0].address, sum(block.size for block in members), stream, small, expandable, members))
    return tuple(found)
