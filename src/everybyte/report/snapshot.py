"""A memory snapshot, or a profile's timeline, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.text import Text

from everybyte.basics.units import GiB, MiB
from everybyte.measure.profiles.read import Profile
from everybyte.measure.snapshots.analysis import DeviceAnalysis, Held

SCHEMA = 1
BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 72
SHOWN = 8


def as_json(found: list[DeviceAnalysis]) -> dict[str, Any]:
    """All devices, whole bytes."""
    return {"schema": SCHEMA, "devices": [_device(one) for one in found]}


def _device(one: DeviceAnalysis) -> dict[str, Any]:
    history, fragmentation = one.history, one.fragmentation
    return {
        "device": one.device,
        "events": history.events,
        "allocated": {"now": history.allocated_now, "peak": history.allocated_peak, "peak_event": history.peak_at},
        "reserved": {"now": history.reserved_now, "peak": history.reserved_peak},
        "categories": _rows(one.categories),
        "lines": _rows(one.lines),
        "modules": _rows(one.modules),
        "fragmentation": {name: getattr(fragmentation, name) for name in fragmentation.__struct_fields__},
        "growth": [{"line": row.line, "first": row.first, "last": row.last} for row in one.growth],
        "replayed": {"reserved": one.native_reserved, "expandable_segments": one.expandable_reserved, "asked": one.asked_reserved},
        "timeline": list(history.course),
    }


def _rows(held: tuple[Held, ...]) -> list[dict[str, Any]]:
    return [{"name": one.name, "peak": one.peak, "now": one.now} for one in held]


def screen(found: list[DeviceAnalysis]) -> Iterator[Text]:
    """One screen a device."""
    for one in found:
        history = one.history
        yield Text(f"Device {one.device}", style="bold")
        yield Text(f"  allocated  peak {_size(history.allocated_peak):>11}   now {_size(history.allocated_now):>11}")
        yield Text(f"  reserved   peak {_size(history.reserved_peak):>11}   now {_size(history.reserved_now):>11}")
        if history.course:
            yield Text(f"  {sparkline(history.course)}  allocated over {history.events:,} events")
        yield from _table("by category", one.categories)
        yield from _table("by line", one.lines)
        yield from _table("by module", one.modules)
        yield from _fragmentation(one)
        for row in one.growth[:SHOWN]:
            yield Text(f"  grows: {row.line}: {_size(row.first)} to {_size(row.last)}")
        yield Text()


def sparkline(values: tuple[int, ...]) -> str:
    """The course as one line of small bars, the highest of each stretch."""
    step = max(-(-len(values) // WIDTH), 1)
    columns = [max(values[i : i + step]) for i in range(0, len(values), step)]
    top = max(columns) or 1
    return "".join(BARS[round((len(BARS) - 1) * value / top)] for value in columns)


def _table(title: str, held: tuple[Held, ...]) -> Iterator[Text]:
    yield Text()
    yield Text(f"  {title:<52}{'peak':>12}{'now':>12}")
    for one in held[:SHOWN]:
        yield Text(f"  {one.name[-50:]:<52}{_size(one.peak):>12}{_size(one.now):>12}")


def _fragmentation(one: DeviceAnalysis) -> Iterator[Text]:
    f = one.fragmentation
    yield Text()
    yield Text(f"  reserved and free: {_size(f.free)} in {f.blocks:,} blocks, the largest {_size(f.largest)}")
    if f.request is not None and f.could_not_serve is not None:
        yield Text(f"  a request of {_size(f.request)} was not served: {_size(f.could_not_serve)} of the free bytes lie in smaller blocks")
    for name, reserved in (("expandable_segments", one.expandable_reserved), ("the settings of --alloc-conf", one.asked_reserved)):
        if one.native_reserved and reserved:
            saved = one.native_reserved - reserved
            word = "would have saved" if saved >= 0 else "would have cost"
            yield Text(f"  {name} {word} {_size(abs(saved))}: {_size(reserved)} reserved instead of {_size(one.native_reserved)}")


def profile_screen(found: Iterable[Profile]) -> Iterator[Text]:
    """One screen a device of a profile."""
    for one in found:
        yield Text(f"Device {one.device}", style="bold")
        yield Text(f"  allocated  peak {_size(one.allocated_peak):>11}   now {_size(one.allocated_now):>11}")
        if one.reserved_peak is not None:
            yield Text(f"  reserved   peak {_size(one.reserved_peak):>11}")
        yield Text(f"  {sparkline(one.course)}  allocated over {one.events:,} events")
        if one.at_peak:
            names = sorted({*one.at_peak, *one.now}, key=lambda name: -one.at_peak.get(name, 0))
            yield from _table("by category", tuple(Held(name, one.at_peak.get(name, 0), one.now.get(name, 0)) for name in names))
        yield Text()


def profile_json(found: Iterable[Profile]) -> dict[str, Any]:
    """All devices of a profile, whole bytes."""
    return {"schema": SCHEMA, "devices": [{name: getattr(one, name) for name in one.__struct_fields__} for one in found]}


def _size(nbytes: int) -> str:
    return f"{nbytes / GiB:,.2f} GiB" if abs(nbytes) >= GiB else f"{nbytes / MiB:,.2f} MiB"
