"""How far the GPU is behind the program: memory that another stream still uses when it is freed can be had again only when that stream is done.

FSDP1 tells the allocator of such uses (Tensor.record_stream), and its limiter lets the program run ahead by two of its frees at most (limit_all_gathers,
torch/distributed/fsdp/_limiter_utils.py). On a GPU with much to do the program is ahead as far as it may be, so that what was freed waits for the limiter;
communication is taken to keep up with the computation. Where no limiter waits, nothing says how far the program is ahead: the GPU is taken to keep up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from everybyte.basics.allocations import STREAM_BITS, Event


class Behind:
    """Uses by other streams, and waits for what was freed; positions count events."""

    def __init__(self) -> None:
        self._uses: dict[int, list[int]] = {}
        self._waits: list[tuple[int, int]] = []

    def uses(self, number: int, position: int) -> None:
        """Another stream uses a storage, until what it has been given by now is done."""
        self._uses.setdefault(number, []).append(position)

    def waits(self, position: int, until: int) -> None:
        """The program waits until all is done that it had ordered at an earlier position, `until`."""
        self._waits.append((position, until))

    def late(self, events: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """(position of a free, position at which the memory can be had again): behind the first wait that reaches so far, or at the end."""
        if not self._waits:
            return ()
        reached = [until for _, until in self._waits]
        found: list[tuple[int, int]] = []
        began: dict[int, int] = {}
        for position, (number, nbytes) in enumerate(events):
            if nbytes > 0:
                began[number] = position
            elif any(began[number] < use <= position for use in self._uses.get(number, ())):
                index = bisect_left(reached, position)
                found.append((position, self._waits[index][0] if index < len(reached) else len(events)))
        return tuple(found)


def delayed(events: Sequence[Event], late: Iterable[tuple[int, int]], before: int = 0) -> list[Event]:
    """The allocator's events with frees moved to where they come late; `before` events of it are not counted. What is allocated again meanwhile gets another
    key."""
    until = {before + position: before + end for position, end in late}
    if not until:
        return list(events)
    keys: dict[int, int] = {}
    ends: dict[int, list[Event]] = {}
    found: list[Event] = []
    free = max(key & ((1 << STREAM_BITS) - 1) for key, _ in events) + 1
    for position, (key, nbytes) in enumerate(events):
        found += ends.pop(position, ())
        if nbytes:
            if key in keys:
                keys[key], free = (key >> STREAM_BITS) << STREAM_BITS | free, free + 1
            found.append((keys.setdefault(key, key), nbytes))
        elif position in until:
            ends.setdefault(until[position], []).append((keys[key], 0))
        else:
            found.append((keys[key], 0))
    return found
