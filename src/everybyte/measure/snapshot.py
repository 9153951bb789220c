"""Memory snapshots of PyTorch (torch.cuda.memory._dump_snapshot): what a process held on each device, and what led to it.

A snapshot is a pickle, and a pickle may run code when it is read. This reader makes plain containers, numbers and texts alone: a file that names
any class or function is refused before that is looked up.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from os import PathLike
from typing import Any, NamedTuple, NoReturn

import msgspec

from everybyte.allocator.blocks import Block, Segment, State
from everybyte.basics.allocations import EMPTY_CACHE, STREAM_BITS, Event
from everybyte.basics.errors import BadInput

GIVEN_BACK = ("segment_free", "segment_unmap")


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


class _Segment(msgspec.Struct):
    device: int
    address: int
    stream: int
    blocks: list[_Block]
    segment_type: str = "large"
    is_expandable: bool = False


class _Content(msgspec.Struct):
    segments: list[_Segment]
    device_traces: list[list[Entry]] = []


class DeviceMemory(NamedTuple):
    """What was held on one device, by address, and its history, oldest first."""

    segments: tuple[Segment, ...]
    history: tuple[Entry, ...]


class _PlainUnpickler(pickle.Unpickler):
    """Finds no class and no function."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuses: whatever is named would be called."""
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a memory snapshot is made of plain values alone")


def read_snapshot(path: str | PathLike[str]) -> dict[int, DeviceMemory]:
    """The memory of each device that a snapshot tells something of. Raises BadInput for what is no snapshot."""
    try:
        with open(path, "rb") as file:
            content = msgspec.convert(_PlainUnpickler(file).load(), _Content)
    except OSError as error:
        raise BadInput(str(path), f"cannot be read: {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise BadInput(str(path), f"is no memory snapshot: {error}") from None
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError, MemoryError, RecursionError) as error:
        raise BadInput(str(path), f"is no memory snapshot, or not a whole one: {error}") from None
    devices = {segment.device for segment in content.segments} | {number for number, trace in enumerate(content.device_traces) if trace}
    return {
        device: DeviceMemory(
            tuple(_segment(s) for s in sorted(content.segments, key=lambda s: s.address) if s.device == device),
            tuple(content.device_traces[device]) if device < len(content.device_traces) else (),
        )
        for device in sorted(devices)
    }


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
