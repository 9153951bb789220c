"""The peak of reserved bytes under default settings, on a device without end and near its limit: most answers ask nothing else of the allocator.

`_compiled.c` does the same some ten times as fast. It is there where the package was built with a C compiler, as in its wheels; both come to the
same bytes, which a test holds.
"""

from __future__ import annotations

from collections.abc import Iterable

from everybyte.allocator.caching import MIN_BLOCK, SMALL_REQUEST, SMALL_SEGMENT, OutOfMemory
from everybyte.allocator.quick import ENDLESS_LIVING, large_peak
from everybyte.allocator.replay import replay
from everybyte.allocator.settings import DEFAULT
from everybyte.basics.allocations import STREAM_BITS, Event, Played, flat, peak_living, settled
from everybyte.basics.units import round_up


def endless_peak(items: list[Event | Played], expandable: bool) -> tuple[int, int]:
    """The peaks of reserved bytes and of what lives, on a device without end. Expandable segments are not asked to empty the cache here. Where more lives
    than any device has, what the allocator adds is of no matter."""
    events = list(flat(items))
    if any(min(event) < 0 for event in events):
        events = list(settled(events))
    living = peak_living(events)
    if living > ENDLESS_LIVING:
        return living, living
    needed = 0
    for rows in _by_stream(events):
        large, small = apart(rows)
        needed += large_peak(large, expandable=expandable) + small
    return needed, living


def limited_peak(items: list[Event | Played], limit: int) -> tuple[int, int, int] | None:
    """The peak of reserved bytes where no more than `limit` may be reserved, how often cached blocks were given back for want of room, and what is
    reserved at the end; None where giving back was not enough. Segments do not expand."""
    try:
        served = replay(flat(items), DEFAULT, limit)
    except OutOfMemory:
        return None
    return served.peak_reserved, served.retries, served.reserved


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
