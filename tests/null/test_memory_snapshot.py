"""Memory snapshots are read without running anything that is in them; what is no snapshot is refused with its path."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from everybyte.basics.allocations import EMPTY_CACHE
from everybyte.basics.errors import BadInput
from everybyte.measure.snapshots.read import Entry, events_of, read_snapshot

BLOCKS = [{"size": 1024, "requested_size": 1000, "state": "active_allocated"}, {"size": 512, "requested_size": 400, "state": "inactive"}]
SEGMENT = {"device": 1, "address": 4096, "total_size": 1536, "stream": 7, "segment_type": "small", "blocks": BLOCKS, "frames": []}
TRACE = [{"action": "alloc", "addr": 4096, "size": 1000, "stream": 7, "frames": [{"name": "f", "filename": "a.py", "line": 3}]}]


def written(folder: Path, content: Any) -> Path:
    """A file with the content pickled."""
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content, protocol=4))
    return path


def test_what_is_read(tmp_path: Path) -> None:
    """Segments and history by device; a block's address is the sum of those before it, and a free one asks for nothing."""
    path = written(tmp_path, {"segments": [SEGMENT], "device_traces": [[], TRACE], "allocator_settings": {}})
    found = read_snapshot(path)
    assert list(found) == [1]
    (segment,), (entry,), _ = found[1]
    assert [(b.address, b.size, b.requested, b.state) for b in segment.blocks] == [(4096, 1024, 1000, "active_allocated"), (5120, 512, 0, "inactive")]
    assert (segment.size, segment.stream, segment.small, segment.expandable) == (1536, 7, True, False)
    assert (entry.action, entry.addr, entry.size, entry.frames[0]["line"]) == ("alloc", 4096, 1000, 3)


class Evil:
    """What calls a function when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    """A pickle that names a function is refused by that name, and the function is not called."""
    trap = tmp_path / "trap"
    path = written(tmp_path, {"segments": [Evil(trap)]})
    with pytest.raises(BadInput, match=r"snapshot\.pickle: is no memory snapshot, or not a whole one: it names posix\.mkdir"):
        read_snapshot(path)
    assert not trap.exists()


def looped() -> list[Any]:
    """A list that holds itself."""
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "missing required field `segments`"),
        ([1, 2], "Expected `object`, got `array`"),
        ({"segments": [{**SEGMENT, "blocks": [{"size": "1", "state": "inactive"}]}]}, r"Expected `int`, got `str` - at `\$\.segments\[0\]\.blocks\[0\]\.size`"),
        ({"segments": [{**SEGMENT, "blocks": [{"size": 1, "state": "odd"}]}]}, "Invalid enum value 'odd'"),
        ({"segments": looped()}, "is no memory snapshot"),
    ],
)
def test_other_content_is_refused(content: Any, message: str, tmp_path: Path) -> None:
    """The place and what is expected there."""
    with pytest.raises(BadInput, match=message):
        read_snapshot(written(tmp_path, content))


@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04", b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.", b"cposix\nsystem\n(S'true'\ntR.", b"\x80\x04}\x94(\x8c"]
)
def test_bytes_that_are_no_pickle(data: bytes, tmp_path: Path) -> None:
    """An empty file, an archive, a length that no file has, an old protocol that names a function, a file that was cut off."""
    path = tmp_path / "file.pickle"
    path.write_bytes(data)
    with pytest.raises(BadInput, match="is no memory snapshot"):
        read_snapshot(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The path and the system's reason."""
    with pytest.raises(BadInput, match=r"none\.pickle: cannot be read: No such file"):
        read_snapshot(tmp_path / "none.pickle")


def test_events() -> None:
    """A request ends when its block is free; a run of segments that go back is one emptying; what began before the history is left out; streams are
    numbered as they come."""
    history = [
        Entry(action, size, stream, addr)
        for action, size, stream, addr in [
            ("free_completed", 5, 0, 77),
            ("segment_alloc", 90, 64, 4096),
            ("alloc", 5, 64, 4096),
            ("free_requested", 5, 64, 4096),
            ("alloc", 6, 0, 9000),
            ("free_completed", 5, 64, 4096),
            ("segment_free", 90, 64, 4096),
            ("segment_free", 90, 64, 8192),
            ("oom", 7, 0, 0),
        ]
    ]
    (first, five), (second, six), freed, emptied = events_of(history)
    assert (first >> 40, five, second >> 40, six) == (1, 5, 0, 6)
    assert (freed, emptied) == ((first, 0), EMPTY_CACHE)
