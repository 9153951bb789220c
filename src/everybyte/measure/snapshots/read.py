"""Memory snapshots of PyTorch (torch.cuda.memory._dump_snapshot): what a process held on each device, and what led to it.

A snapshot is a pickle, and a pickle may run code when it is read. This reader makes plain containers, numbers and texts alone: a file that names
any class or function is refused before that is looked up.
"""

from __future__ import annotations

import gzip
import pickle
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from everybyte.allocator.blocks import Block, Segment, State
from everybyte.basics.allocations import EMPTY_CACHE, STREAM_BITS, Event
from everybyte.basics.errors import BadInput

GIVEN_BACK = ("segment_free", "segment_unmap")
GZIP = b"\x1f\x8b"
MOST_ENTRIES = 20_000_000
"""Entries and blocks of a file, all devices together. A pickle may name one list a million times: what it says would never end."""
MOST_DEVICES = 1024
ROOM = 2 << 30
ROOM_A_BYTE = 40
"""Memory that reading may take: so much, and so many bytes for each byte of the file. A damaged file may ask for any amount."""


class Entry(msgspec.Struct, gc=False):
    """One line of a device's history; `addr` is 0 where memory ran out."""

    action: str
    size: int
    stream: int
    addr: int = 0
    time_us: int = 0
    frames: list[dict[str, Any]] = []


class _Block(msgspec.Struct):
    size: int
    state: State
    requested_size: int = 0
    frames: list[dict[str, Any]] = []
    history: list[dict[str, Any]] = []
    """Older releases of PyTorch keep the frames here."""


class _Segment(msgspec.Struct):
    device: int
    address: int
    stream: int
    blocks: list[_Block]
    total_size: int = 0
    segment_type: str = "large"
    is_expandable: bool = False


class _Content(msgspec.Struct):
    segments: list[_Segment]
    device_traces: list[list[Entry]] = []


class DeviceMemory(NamedTuple):
    """What was held on one device, by address, and its history, oldest first."""

    segments: tuple[Segment, ...]
    history: tuple[Entry, ...]
    frames: dict[int, list[dict[str, Any]]]
    """address of a block that is lived in -> the stack that made it."""


class _PlainUnpickler(pickle.Unpickler):
    """Finds no class and no function."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuses: whatever is named would be called."""
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a memory snapshot is made of plain values alone")


def read_snapshot(path: str | PathLike[str]) -> dict[int, DeviceMemory]:
    """The memory of each device that a snapshot tells something of. Raises BadInput for what is no snapshot."""
    try:
        with open(path, "rb") as file:
            return snapshot_of(file, Path(path).stat().st_size, str(path))
    except OSError as error:
        raise BadInput(str(path), f"cannot be read: {error.strerror}") from None


def snapshot_of(file: BufferedIOBase, nbytes: int, place: str) -> dict[int, DeviceMemory]:
    """The same of an open file of `nbytes` bytes, which messages call `place`."""
    try:
        with _unpacked(file, nbytes) as (plain, most), bounded(most):
            content = msgspec.convert(_counted(_PlainUnpickler(plain).load(), place), _Content)
    except msgspec.ValidationError as error:
        raise BadInput(place, f"is no memory snapshot: {error}") from None
    except (
        gzip.BadGzipFile,
        zlib.error,
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        MemoryError,
        RecursionError,
        OverflowError,
    ) as error:
        raise BadInput(place, f"is no memory snapshot, or not a whole one: {error}") from None
    devices = {segment.device for segment in content.segments} | {number for number, trace in enumerate(content.device_traces) if trace}
    return {
        device: DeviceMemory(
            tuple(_segment(s) for s in sorted(content.segments, key=lambda s: s.address) if s.device == device),
            tuple(content.device_traces[device]) if device < len(content.device_traces) else (),
            _frames(s for s in content.segments if s.device == device),
        )
        for device in sorted(devices)
    }


@contextmanager
def _unpacked(file: BufferedIOBase, nbytes: int) -> Iterator[tuple[BufferedIOBase, int]]:
    """The file, unpacked where it is compressed, and how large its content may be."""
    start = file.read(len(GZIP))
    file.seek(0)
    if start == GZIP:
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield unpacked, 20 * nbytes  # memory snapshots shrink to a tenth or less
    else:
        yield file, nbytes


@contextmanager
def bounded(nbytes: int, room_a_byte: int = ROOM_A_BYTE) -> Iterator[None]:
    """Lets the process grow by no more than a file of this size can need; beyond, a MemoryError is raised. Systems without such a limit have none."""
    try:
        import resource
    except ImportError:  # Windows
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    most = now + ROOM + room_a_byte * nbytes
    resource.setrlimit(resource.RLIMIT_AS, (most if soft in (-1, resource.RLIM_INFINITY) else min(soft, most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _counted(content: Any, place: str) -> Any:
    """The content, if it is not endless. Raises BadInput at `place`."""
    if not isinstance(content, dict):
        return content
    traces, segments = content.get("device_traces") or [], content.get("segments") or []
    if not isinstance(traces, list | tuple) or not isinstance(segments, list | tuple):
        return content
    count = len(segments) + sum(len(trace) for trace in traces if isinstance(trace, list | tuple))
    count += sum(len(s["blocks"]) for s in segments if isinstance(s, dict) and isinstance(s.get("blocks"), list | tuple))
    if count > MOST_ENTRIES or len(traces) > MOST_DEVICES:
        raise BadInput(place, f"says that it has {count:,} entries for {len(traces):,} devices; at most {MOST_ENTRIES:,} for {MOST_DEVICES:,} are read")
    return content


def _frames(segments: Iterable[_Segment]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for segment in segments:
        address = segment.address
        for block in segment.blocks:
            frames = block.frames or (block.history[-1].get("frames", []) if block.history else [])
            if block.state != "inactive" and isinstance(frames, list):
                found[address] = frames
            address += block.size
    return found


def _segment(read: _Segment) -> Segment:
    blocks, address = [], read.address
    for block in read.blocks:
        blocks.append(Block(address, block.size, block.requested_size * (block.state != "inactive"), block.state, 0))
        address += block.size
    return Segment(read.address, address - read.address, read.stream, read.segment_type == "small", read.is_expandable, tuple(blocks))


def events_of(history: Iterable[Entry]) -> list[Event]:
    """The requests of a history as allocator.replay serves them.

    A block is freed when it could be had again, not when that was asked for; segments that go back, for want of room or by empty_cache, make the
    cache empty. What was allocated before the history begins is not part of it, nor is its end.
    """
    events: list[Event] = []
    keys: dict[int, int] = {}
    streams: dict[int, int] = {0: 0}
    before = ""
    for number, entry in enumerate(history, 1):
        if entry.action == "alloc":
            keys[entry.addr] = (streams.setdefault(entry.stream, len(streams)) << STREAM_BITS) + number
            events.append((keys[entry.addr], entry.size))
        elif entry.action == "free_completed" and entry.addr in keys:
            events.append((keys.pop(entry.addr), 0))
        elif entry.action in GIVEN_BACK and before not in GIVEN_BACK:
            events.append(EMPTY_CACHE)
        before = entry.action
    return events
