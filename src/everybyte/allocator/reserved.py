"""Reserved bytes of a course of allocations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from everybyte.allocator.caching import DEFAULT, ENDLESS, MIN_BLOCK, SMALL_REQUEST, SMALL_SEGMENT, STREAM_BITS, OutOfMemory
from everybyte.allocator.quick import ENDLESS_LIVING, large_peak
from everybyte.allocator.replay import EMPTY_CACHE, Event, replay
from everybyte.allocator.settings import AllocatorSettings
from everybyte.basics.units import round_up

EXPANDABLE = AllocatorSettings(expandable_segments=True)


class Reserved(NamedTuple):
    """The peak of reserved bytes, and how often cached blocks were given back for want of room."""

    peak: int
    retries: int = 0
    blocks: int = 0
    """The peak of the blocks in use where the settings make them larger than what was asked for; 0: they do not."""


def peak_reserved(script: Iterable[Event], settings: AllocatorSettings = DEFAULT, capacity: int = 0, *, total: int = 0) -> Reserved:
    """The peak of reserved bytes when PyTorch's caching allocator serves `script` of (key, bytes) allocations, (key, 0) frees
    and EMPTY_CACHE (allocator.replay).

    Each stream has pools of its own, so that their peaks add up. On a device of `capacity` (of `total` bytes as a whole) the allocator gives back
    what is free on any stream before it fails. A script that cannot be served at all is replayed without a limit, so that the answer says how
    much is missing.
    """
    events = list(script)
    needed, blocks = _endless(events, settings)
    allowed = settings.allowed_bytes(total or capacity) or ENDLESS
    limit = min(capacity or ENDLESS, allowed)
    collects = settings.collect_above > 0 and allowed < ENDLESS
    if (needed <= limit and not collects) or peak_living(events) > limit:
        return Reserved(needed, blocks=blocks)
    try:
        # near the limit every MiB counts, and all pools are given back together: all events are replayed
        served = replay(events, settings, capacity, total=total)
    except OutOfMemory:
        return Reserved(needed, blocks=blocks)
    return Reserved(served.peak_reserved, served.retries, served.peak_allocated if blocks else 0)


def _endless(events: list[Event], settings: AllocatorSettings) -> tuple[int, int]:
    """The peaks of reserved bytes and of blocks (as in Reserved) on a device without end."""
    if settings not in (DEFAULT, EXPANDABLE) or (settings.expandable_segments and EMPTY_CACHE in events):
        served = replay(events, settings)
        return served.peak_reserved, served.peak_allocated if settings.roundup_divisions or settings.max_split_bytes else 0
    if sum(nbytes for _, nbytes in events) > ENDLESS_LIVING and (living := peak_living(events)) > ENDLESS_LIVING:
        return living, 0  # a mistake in the job: what the allocator adds is of no matter
    needed = 0
    for rows in _by_stream(events):
        large, small = apart(rows)
        needed += large_peak(large, expandable=settings.expandable_segments) + small
    return needed, 0


def peak_living(events: Iterable[Event]) -> int:
    """The largest sum of what lives at once, on all streams."""
    alive: dict[int, int] = {}
    total = peak = 0
    for key, nbytes in events:
        if nbytes:
            alive[key] = nbytes
            total += nbytes
            peak = max(peak, total)
        else:
            total -= alive.pop(key, 0)
    return peak


def _by_stream(events: list[Event]) -> list[list[Event]]:
    """The events of each stream; the cache of all is emptied together."""
    if not events or max(events)[0] >> STREAM_BITS == 0:
        return [events]
    found: dict[int, list[Event]] = {}
    for event in events:
        if event[0]:
            found.setdefault(event[0] >> STREAM_BITS, []).append(event)
        else:
            for rows in found.values():
                rows.append(event)
    return list(found.values())


def apart(script: Iterable[Event]) -> tuple[list[Event], int]:
    """(events of the large pool, reserved bytes of the small one).

    Tensors of up to 1 MiB never share a segment with larger ones. Their 2 MiB segments are filled again and again, so that their pool is as
    large as they ever are together, in whole segments; replaying each of them would take half of the time for a few MiB.
    """
    large: list[Event] = []
    sizes: dict[int, int] = {}
    alive = peak = 0
    for event in script:
        key, nbytes = event
        if nbytes > SMALL_REQUEST:
            large.append(event)
        elif nbytes:
            sizes[key] = size = -(-nbytes // MIN_BLOCK) * MIN_BLOCK
            alive += size
            peak = max(peak, alive)
        elif key in sizes:
            alive -= sizes.pop(key)
        else:
            large.append(event)
    return large, round_up(peak, SMALL_SEGMENT)
