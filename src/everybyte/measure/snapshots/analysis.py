"""What a snapshot shows of one device: totals, categories at the peak and now, lines of code, fragmentation, growth, the effect of other settings."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from everybyte.allocator.replay import replay
from everybyte.allocator.settings import AllocatorSettings
from everybyte.basics.record import Record
from everybyte.ledger.entry import Category
from everybyte.measure.snapshots.categories import Sorter
from everybyte.measure.snapshots.read import DeviceMemory, events_of
from everybyte.measure.snapshots.timeline import Frames, History, Life, history_of, levels_of

MOST_LINES = 20
LIBRARY = re.compile(r"site-packages|dist-packages|/torch/|lib/python3")
OWN = re.compile(r"\.py$|^<(?:stdin|string)>$|ipykernel|\.ipynb")
"""Files of Python programs; a stack also has frames of C++ and, of a trace, frames that name the operation and the module."""
WINDOWS = 6
"""Stretches of the history whose lowest instants are compared for growth."""
MOST_REPLAYED = 400_000
"""Events that are replayed with other settings: some seconds."""


class Held(Record, frozen=True):
    """Bytes of a name at the peak and now."""

    name: str
    peak: int
    now: int


class Fragmentation(Record, frozen=True):
    """Reserved bytes that nobody lives in."""

    free: int
    largest: int
    """The largest free block: a request above it needs a new segment."""
    blocks: int
    pending: int
    """Freed, but still used by another stream."""
    request: int | None = None
    """The request that was not served, where the history has one."""
    could_not_serve: int | None = None
    """Of the free bytes, those in blocks smaller than that request."""


class Growth(Record, frozen=True):
    """A line whose blocks grow from stretch to stretch of the history."""

    line: str
    first: int
    last: int


class DeviceAnalysis(Record, frozen=True, eq=False):
    """All of one device."""

    device: int
    history: History
    categories: tuple[Held, ...]
    lines: tuple[Held, ...]
    modules: tuple[Held, ...]
    fragmentation: Fragmentation
    growth: tuple[Growth, ...]
    expandable_reserved: int | None
    """Reserved bytes at their peak had segments been expandable; None where the history is too long, or has no allocation."""
    native_reserved: int | None
    """The same with the settings of the replay unchanged: what the comparison is against."""
    asked_reserved: int | None = None
    """The same with the settings that were asked for."""


def analysed(device: int, memory: DeviceMemory, asked: AllocatorSettings | None = None) -> DeviceAnalysis:
    """The analysis of a device. `asked` are settings of the allocator with which the history is replayed as well."""
    history = history_of(memory)
    sorter = Sorter(history)
    peak, now = history.at(history.peak_at), [life for life in history.lives if life.end >= history.events]
    plain = AllocatorSettings()
    native, expandable, other = _replayed(memory, (plain, replace(plain, expandable_segments=True), asked))
    return DeviceAnalysis(
        device,
        history,
        _held(peak, now, sorter.category),
        _held(peak, now, lambda life: line_of(life.frames))[:MOST_LINES],
        _held(peak, now, lambda life: module_of(life.frames))[:MOST_LINES],
        _fragmentation(memory, history),
        _growth(history),
        expandable,
        native,
        other,
    )


def line_of(frames: Frames) -> str:
    """The innermost line of the user's own code; else the innermost line; of a trace the operation, where its program has no line of its own."""
    own = next((frame for frame in frames if OWN.search(_file(frame)) and not LIBRARY.search(_file(frame))), None)
    frame = own or (frames[0] if frames else None)
    if frame is not None and frame.get("filename") == "operation":
        return str(frame.get("name", ""))
    return "no stack" if frame is None else f"{frame.get('filename', '?')}:{frame.get('line', 0)} {frame.get('name', '')}".strip()


def place_said(frames: Frames) -> str | None:
    """The place in the words of a ledger, which snapshots that `everybyte trace` writes state in a frame of their own (trace.results.snapshot)."""
    return next((str(frame.get("name", "")) for frame in frames[3:4] if frame.get("filename") == "place"), None)


def _file(frame: dict[str, Any]) -> str:
    return str(frame.get("filename", ""))


def module_of(frames: Frames) -> str:
    """The innermost `forward` of a model's own file; a snapshot of a trace names the module itself."""
    for frame in frames:
        name, file = str(frame.get("name", "")), str(frame.get("filename", ""))
        if ", " in file and not file.endswith(".py"):
            return name
        if name == "forward" and "/torch/nn/" not in file:
            return f"{file.rpartition('/')[2]}:{frame.get('line', 0)}"
    return "outside modules"


def _held(peak: Iterable[Life], now: Iterable[Life], name_of: Any) -> tuple[Held, ...]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for at, lives in enumerate((peak, now)):
        for life in lives:
            sums[name_of(life)][at] += life.size
    return tuple(Held(name, *both) for name, both in sorted(sums.items(), key=lambda row: (-row[1][0], -row[1][1], row[0])))


def _fragmentation(memory: DeviceMemory, history: History) -> Fragmentation:
    free = [block.size for segment in memory.segments for block in segment.blocks if block.state == "inactive"]
    pending = sum(block.size for segment in memory.segments for block in segment.blocks if block.state == "active_pending_free")
    request = history.oom[1] if history.oom else None
    lost = None if request is None else sum(size for size in free if size < request)
    return Fragmentation(sum(free), max(free, default=0), len(free), pending, request, lost)


def _growth(history: History) -> tuple[Growth, ...]:
    """Lines that hold more at the lowest instant of each stretch than at that of the one before."""
    if history.events < 10 * WINDOWS:
        return ()
    bounds = [history.events * i // WINDOWS for i in range(WINDOWS + 1)]
    levels = levels_of(history.lives, history.events)
    lows = [min(range(first, last), key=lambda at: levels[at]) for first, last in pairwise(bounds)]
    held: list[dict[str, int]] = []
    for position in lows:
        by_line: dict[str, int] = defaultdict(int)
        for life in history.at(position):
            by_line[line_of(life.frames)] += life.size
        held.append(by_line)
    grown = []
    for line in held[-1]:
        sizes = [one.get(line, 0) for one in held[1:]]  # the first stretch may still load
        if all(after > before for before, after in pairwise(sizes)):
            grown.append(Growth(line, sizes[0], sizes[-1]))
    return tuple(sorted(grown, key=lambda one: one.first - one.last))[:MOST_LINES]


def _replayed(memory: DeviceMemory, asked: tuple[AllocatorSettings | None, ...]) -> list[int | None]:
    """Peaks of reserved bytes of the same history with each of these settings; None for settings that are None."""
    if not memory.history or len(memory.history) > MOST_REPLAYED:
        return [None] * len(asked)
    events = events_of(memory.history)
    return [replay(events, settings).peak_reserved if events and settings is not None else None for settings in asked]


def categories_of(found: DeviceAnalysis) -> dict[Category, int]:
    """Bytes at the peak by category, for a comparison with a ledger."""
    return {held.name: held.peak for held in found.categories}  # type: ignore[misc]  # names are categories
