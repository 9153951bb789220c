"""Allocations in program order: the events that a program makes and an allocator serves.

An event is (key, bytes): the allocation of a request, on the stream key >> STREAM_BITS, or, with 0 bytes, its end. The other events are made by
`used_on`, `finished` and EMPTY_CACHE.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Event = tuple[int, int]
Rows = list[tuple[int, int]]
"""(slot, bytes) allocates in a slot, (slot, 0) frees: what is played for every one of equal layers."""
Played = tuple[Rows, list[int]]
"""Rows, and the key of each of their slots."""
STREAM_BITS = 40
"""A key is (stream << 40) + number; stream 0 is the default one."""
EMPTY_CACHE: Event = (0, 0)
"""torch.cuda.empty_cache()."""


class Script:
    """Events in program order. Rows that several layers play are kept as they are: a replay that takes them so is spared most of the work of writing events."""

    def __init__(self, items: list[Event | Played]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Event]:
        """Every event."""
        return flat(self.items)


def flat(items: Iterable[Event | Played]) -> Iterator[Event]:
    """The events of rows, one by one."""
    for first, second in items:
        if isinstance(first, int) and isinstance(second, int):
            yield first, second
        elif isinstance(first, list) and isinstance(second, list):
            yield from ((second[slot], nbytes) for slot, nbytes in first)


def used_on(key: int, stream: int) -> Event:
    """Work on another stream uses a request: Tensor.record_stream(stream)."""
    return key, -1 - stream


def finished(stream: int) -> Event:
    """A stream has done what it was given: what it used, if it is freed by now, can be had again."""
    return -1 - stream, 0


def settled(events: Iterable[Event]) -> Iterator[Event]:
    """The same events where what other streams use ends when these are done: for allocators that know no uses."""
    uses: dict[int, set[int]] = {}
    waiting: dict[int, set[int]] = {}
    for key, nbytes in events:
        if nbytes < 0:
            uses.setdefault(key, set()).add(-1 - nbytes)
        elif key < 0:
            for freed, streams in list(waiting.items()):
                streams.discard(-1 - key)
                if not streams:
                    del waiting[freed]
                    yield freed, 0
        elif not nbytes and key in uses:
            waiting[key] = uses.pop(key)
        else:
            yield key, nbytes


def peak_living(events: Iterable[Event]) -> int:
    """The largest sum of what lives at once, on all streams."""
    alive: dict[int, int] = {}
    total = peak = 0
    for key, nbytes in events:
        if nbytes > 0:
            alive[key] = nbytes
            total += nbytes
            peak = max(peak, total)
        elif not nbytes:
            total -= alive.pop(key, 0)
    return peak
