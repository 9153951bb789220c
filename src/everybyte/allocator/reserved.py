"""Reserved bytes of a course of allocations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from everybyte.allocator.settings import DEFAULT, ENDLESS, AllocatorSettings
from everybyte.basics.allocations import EMPTY_CACHE, Event, Played, Script, flat, peak_living

try:
    from everybyte.allocator import _compiled as fastest
except ImportError:
    from everybyte.allocator import endless as fastest  # type: ignore[no-redef]  # the same function in Python

EXPANDABLE = AllocatorSettings(expandable_segments=True)


class Reserved(NamedTuple):
    """The peak of reserved bytes, and how often cached blocks were given back for want of room."""

    peak: int
    retries: int = 0
    blocks: int = 0
    """The peak of the blocks in use where the settings make them larger than what was asked for; 0: they do not."""
    left: int = 0
    """What is reserved when a step ends, where cached blocks were given back in it; 0: they were not, and the peak stays."""

    @property
    def sampled(self) -> int:
        """What a reading once a second sees. The host runs ahead of the GPU, so that between the growth to the limit and the moment in which the cache is
        given back lie milliseconds; what is left then stays until the next step."""
        return self.left or self.peak


def peak_reserved(script: Iterable[Event], settings: AllocatorSettings = DEFAULT, capacity: int = 0, *, total: int = 0) -> Reserved:
    """The peak of reserved bytes when PyTorch's caching allocator serves `script` of (key, bytes) allocations, (key, 0) frees
    and EMPTY_CACHE (allocator.replay).

    Each stream has pools of its own, so that their peaks add up. On a device of `capacity` (of `total` bytes as a whole) the allocator gives back
    what is free on any stream before it fails. A script that cannot be served at all is replayed without a limit, so that the answer says how
    much is missing.
    """
    items = script.items if isinstance(script, Script) else list[Event | Played](script)
    needed, blocks, living = _endless(items, settings)
    allowed = settings.allowed_bytes(total or capacity) or ENDLESS
    limit = min(capacity or ENDLESS, allowed)
    collects = settings.collect_above > 0 and allowed < ENDLESS
    if (needed <= limit and not collects) or living > limit:
        return Reserved(needed, blocks=blocks)
    # near the limit every MiB counts, and all pools are given back together: all events are replayed
    if settings == DEFAULT:
        found = fastest.limited_peak(items, limit)
        if found is None:
            return Reserved(needed)
        peak, retries, left = found
        return Reserved(peak, retries, left=left if retries else 0)
    return _on_device(items, settings, capacity, total, blocks=blocks > 0) or Reserved(needed, blocks=blocks)


def _on_device(items: list[Event | Played], settings: AllocatorSettings, capacity: int, total: int, *, blocks: bool) -> Reserved | None:
    """What the whole allocator does on a device; None where it cannot serve the events."""
    from everybyte.allocator.caching import OutOfMemory  # few answers need more than the compiled replay
    from everybyte.allocator.replay import replay

    try:
        served = replay(flat(items), settings, capacity, total=total)
    except OutOfMemory:
        return None
    left = served.reserved if served.retries else 0
    return Reserved(served.peak_reserved, served.retries, served.peak_allocated if blocks else 0, left)


def _endless(items: list[Event | Played], settings: AllocatorSettings) -> tuple[int, int, int]:
    """The peaks of reserved bytes, of blocks (as in Reserved) and of what lives on a device without end."""
    if settings not in (DEFAULT, EXPANDABLE) or (settings.expandable_segments and EMPTY_CACHE in items):
        from everybyte.allocator.replay import replay

        served = replay(flat(items), settings)
        blocks = served.peak_allocated if settings.roundup_divisions or settings.max_split_bytes else 0
        return served.peak_reserved, blocks, peak_living(flat(items))
    needed, living = fastest.endless_peak(items, settings.expandable_segments)
    return needed, 0, living
