"""The history of a device as lives: which block was made when, by whom, and when it was freed; what was held at each event."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from everybyte.basics.record import Record
from everybyte.basics.units import round_up
from everybyte.measure.snapshots.read import DeviceMemory

BLOCK = 512
"""c10/cuda/CUDACachingAllocator.cpp kMinBlockSize: allocated bytes count whole blocks."""
GROWS, SHRINKS = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")
Frames = list[dict[str, Any]]


class Life(NamedTuple):
    """A block in the history: positions of events; `start` -1 where it is older than the history, `end` its length where it still lives."""

    size: int
    """Bytes of the block, rounded as the allocator rounds."""
    start: int
    end: int
    frames: Frames


class History(Record, frozen=True, eq=False):
    """What a device held over time."""

    lives: tuple[Life, ...]
    events: int
    allocated_now: int
    reserved_now: int
    allocated_peak: int
    peak_at: int
    """Position of the event after which most was allocated."""
    reserved_peak: int
    course: tuple[int, ...]
    """Allocated bytes after each event that changes them, thinned to COURSE points: the highest of each stretch."""
    oom: tuple[int, int] | None = None
    """(position, bytes asked for) of the first request that was not served."""

    def at(self, position: int) -> list[Life]:
        """What lives after an event."""
        return [life for life in self.lives if life.start <= position < life.end]


COURSE = 400


def history_of(memory: DeviceMemory) -> History:
    """The lives of a device's blocks. What lived before the history begins is known from what is there at the end and from what was freed."""
    born: dict[int, tuple[int, int, Frames]] = {}
    lives: list[Life] = []
    older: list[Life] = []
    reserved = 0
    reserved_course: list[int] = []
    oom = None
    freed: set[int] = set()
    for position, entry in enumerate(memory.history):
        if entry.action == "alloc":
            born[entry.addr] = (position, round_up(max(entry.size, 1), BLOCK), entry.frames)
            freed.discard(entry.addr)
        elif entry.action in ("free_requested", "free_completed", "free") and entry.addr not in freed:
            made = born.pop(entry.addr, None)
            size = made[1] if made else round_up(max(entry.size, 1), BLOCK)
            (lives if made else older).append(Life(size, made[0] if made else -1, position, made[2] if made else entry.frames))
            freed.add(entry.addr)
        elif entry.action in GROWS:
            reserved += entry.size
        elif entry.action in SHRINKS:
            reserved -= entry.size
        elif entry.action == "oom" and oom is None:
            oom = (position, entry.size)
        reserved_course.append(reserved)
    events = len(memory.history)
    blocks = [block for segment in memory.segments for block in segment.blocks if block.state == "active_allocated"]
    for block in blocks:
        made = born.pop(block.address, None)
        lives.append(Life(block.size, made[0] if made else -1, events, made[2] if made else memory.frames.get(block.address, [])))
    lives += [Life(size, start, events, frames) for start, size, frames in born.values()]
    now = sum(block.size for block in blocks) if memory.segments else sum(size for _, size, _ in born.values())
    reserved_now = sum(segment.size for segment in memory.segments)
    everything = (*older, *lives)
    levels = levels_of(everything, events)
    peak = max(levels, default=now)
    return History(
        everything,
        events,
        now,
        reserved_now,
        max(peak, now),
        levels.index(peak) if levels else -1,
        max((reserved_now - reserved + one for one in reserved_course), default=reserved_now),
        _thinned(levels),
        oom,
    )


def levels_of(lives: Iterable[Life], events: int) -> list[int]:
    """Allocated bytes after each event."""
    changes = [0] * (events + 1)
    level = 0
    for life in lives:
        if life.start < 0:
            level += life.size
        else:
            changes[life.start] += life.size
        if life.end < events:
            changes[life.end] -= life.size
    found = []
    for change in changes[:events]:
        level += change
        found.append(level)
    return found


def _thinned(points: list[int]) -> tuple[int, ...]:
    """At most COURSE points, the highest of each stretch."""
    step = max(-(-len(points) // COURSE), 1)
    return tuple(max(points[i : i + step]) for i in range(0, len(points), step))
