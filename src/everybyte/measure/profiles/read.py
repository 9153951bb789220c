"""Reads memory timelines of torch.profiler (export_memory_timeline: JSON, raw JSON, either compressed) and chrome traces with memory events.

Of a device they say what was allocated when; a timeline says it by category. Its HTML form holds a picture alone, so it is
refused with the forms that are read.
"""

from __future__ import annotations

import gzip
import zlib
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.basics.record import Record
from everybyte.ledger.entry import Category
from everybyte.measure.snapshots.read import GZIP, bounded

ORDER: tuple[Category, ...] = ("parameter", "optimizer_state", "input", "temporary", "activation", "gradient", "autograd_detail", "unknown")
"""torch/profiler/_memory_profiler.py _CATEGORY_TO_INDEX: a timeline's columns behind the first, and the last number of a raw event."""
MOST_BYTES = 512 << 20
"""Of the text of a file, unpacked."""
ROOM_A_BYTE = 12
"""Memory that a byte of JSON may take as numbers of Python: `[0,0,0,0],` are ten bytes, a tuple of four small numbers about 100."""
MEMORY = "[memory]"
"""Chrome traces: the name of an event that says what is allocated."""
ON_GPU = 1
"""c10/core/DeviceType.h: CUDA, which HIP calls itself too. 0 is the CPU."""
HEAD = 4096
"""Bytes that tell what a file is."""
COURSE = 400


class Profile(Record, frozen=True, eq=False):
    """What a profile says of one device."""

    device: str
    """`0` for the first GPU, `cpu`, `any` where the file does not say."""
    events: int
    allocated_peak: int
    allocated_now: int
    reserved_peak: int | None
    """None where the file does not say."""
    at_peak: dict[Category, int]
    """By category; empty where the file does not say."""
    now: dict[Category, int]
    course: tuple[int, ...]
    """Allocated bytes, the highest of each of at most COURSE stretches."""


class _Arguments(msgspec.Struct):
    kind: int = msgspec.field(name="Device Type", default=0)
    number: int = msgspec.field(name="Device Id", default=-1)
    allocated: int = msgspec.field(name="Total Allocated", default=0)
    reserved: int = msgspec.field(name="Total Reserved", default=0)


class _Event(msgspec.Struct):
    name: str = ""
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Trace(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815  # the file's name


class _Coalesced(NamedTuple):
    times: list[float]
    sizes: list[list[int]]


def is_profile(head: bytes, path: str) -> bool:
    """Whether a file that begins so is one of these: JSON that is a list, or a mapping that names traceEvents; its compressed forms by their endings."""
    if head[:2] == GZIP:
        return path.endswith(".json.gz")
    begin = head.lstrip()
    is_trace = begin.startswith(b"{") and (b'"traceEvents"' in head or b'"schemaVersion"' in head)
    return is_trace or begin.startswith((b"[[", b"[ [")) or is_picture(head)


def is_picture(head: bytes) -> bool:
    """Whether a file is the HTML form."""
    return b"<title>GPU Memory Timeline HTML</title>" in head


def read_profile(path: str | PathLike[str]) -> tuple[Profile, ...]:
    """The devices of a profile. Raises BadInput for what is none, or larger than is read."""
    place = str(path)
    try:
        text = _text(place)
        if is_picture(text[:HEAD]):
            raise BadInput(place, "holds a picture and no numbers; let export_memory_timeline write a file that ends in .json or .raw.json.gz")
        with bounded(len(text), ROOM_A_BYTE):
            found = _chrome(text, place) if text.lstrip()[:1] == b"{" else (_timeline(text),)
    except OSError as error:
        raise BadInput(place, f"cannot be read: {error.strerror or error}") from None
    except (msgspec.DecodeError, MemoryError, RecursionError, EOFError, zlib.error, ValueError, OverflowError) as error:
        raise BadInput(place, f"is no memory timeline of torch.profiler and no chrome trace, or not a whole one: {error}") from None
    return found


def _text(path: str) -> bytes:
    with Path(path).open("rb") as file:
        packed = file.read(2) == GZIP
        file.seek(0)
        if packed:
            with gzip.GzipFile(fileobj=file) as unpacked:
                text = unpacked.read(MOST_BYTES + 1)
        else:
            text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise BadInput(path, f"is larger than {MOST_BYTES >> 20} MiB, unpacked; profile fewer steps")
    return text


def _timeline(text: bytes) -> Profile:
    """A timeline in either form: two lists of times and sizes, or a list of events of four numbers."""
    try:
        steps = msgspec.json.decode(text, type=_Coalesced)
    except msgspec.ValidationError:
        return _of_events(msgspec.json.decode(text, type=list[tuple[int, int, int, int]]))
    return _of_steps(steps.sizes)


def _of_steps(sizes: list[list[int]]) -> Profile:
    """Each row is a zero and a size a category."""
    if any(len(row) != len(ORDER) + 1 for row in sizes):
        raise ValueError(f"each row of sizes has {len(ORDER) + 1} numbers")
    levels = [sum(row) for row in sizes]
    highest = max(range(len(levels)), key=levels.__getitem__, default=None)
    at_peak = _by_category(sizes[highest][1:]) if highest is not None else {}
    return _profile(levels, at_peak, _by_category(sizes[-1][1:]) if sizes else {})


def _of_events(events: list[tuple[int, int, int, int]]) -> Profile:
    """(time, action, change of bytes, category): what was there before the profile comes with a time of -1."""
    held = [0] * len(ORDER)
    levels, at_peak, highest, level = [], list(held), 0, 0
    for _, _, change, category in events:
        if not 0 <= category < len(ORDER):
            raise ValueError(f"category {category} is not one of {len(ORDER)}")
        held[category] += change
        level += change
        levels.append(level)
        if level > highest:
            highest, at_peak = level, list(held)
    return _profile(levels, _by_category(at_peak), _by_category(held))


def _profile(levels: list[int], at_peak: dict[Category, int], now: dict[Category, int]) -> Profile:
    return Profile("any", len(levels), max(levels, default=0), levels[-1] if levels else 0, None, at_peak, now, _thinned(levels))


def _by_category(sizes: list[int]) -> dict[Category, int]:
    return {name: size for name, size in zip(ORDER, sizes, strict=True) if size}


def _chrome(text: bytes, place: str) -> tuple[Profile, ...]:
    """Memory events say how much of a device is allocated and reserved after them."""
    events = [msgspec.json.decode(event.args, type=_Arguments) for event in msgspec.json.decode(text, type=_Trace).traceEvents if event.name == MEMORY]
    devices: dict[str, list[_Arguments]] = {}
    for event in events:
        devices.setdefault(str(event.number) if event.kind == ON_GPU else "cpu", []).append(event)
    if not devices:
        raise BadInput(place, "is a chrome trace without memory events; profile with profile_memory=True")
    found = []
    for name, seen in sorted(devices.items()):
        levels = [event.allocated for event in seen]
        reserved = max(event.reserved for event in seen) if name != "cpu" else None
        found.append(Profile(name, len(seen), max(levels), levels[-1], reserved, {}, {}, _thinned(levels)))
    return tuple(found)


def _thinned(points: list[int]) -> tuple[int, ...]:
    step = max(-(-len(points) // COURSE), 1)
    return tuple(max(points[i : i + step]) for i in range(0, len(points), step))
