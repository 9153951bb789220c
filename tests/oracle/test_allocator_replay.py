"""The replay of PyTorch's allocator against PyTorch's own compiled code, recorded on a device without silicon (record_allocator.py).

The replay was also held against 21 snapshots of real training and inference runs on GPUs that others have put into public repositories (their
licences do not let them be copied here): undone to the start of its trace and replayed, each of 20 gives the same address for all of its requests
(73,000 together), the same segments and the same block map; of one, the start is not told by its file (a freed block whose unsplit rest is unknown).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everybyte.allocator.blocks import Action, Segment
from everybyte.allocator.caching import CachingAllocator, OutOfMemory
from everybyte.allocator.replay import replay, serve, simulator
from everybyte.allocator.settings import read_alloc_conf
from everybyte.measure.snapshots.read import events_of, read_snapshot

DATA = Path(__file__).parent / "data"
LINES = [json.loads(line) for line in (DATA / "allocator.jsonl").read_text(encoding="utf-8").splitlines()]


def served(run: dict[str, Any], log: list[Action]) -> CachingAllocator:
    """Our allocator after the same events; what it cannot serve is left out, as in the recording."""
    allocator = simulator(read_alloc_conf(run["settings"]), run["memory"], log=log)
    failed: set[int] = set()
    for key, nbytes in run["events"]:
        if key in failed and nbytes <= 0:
            continue
        try:
            serve(allocator, key, nbytes)
        except OutOfMemory:
            failed.add(key)
    return allocator


@pytest.mark.parametrize("run", LINES, ids=[f"{i}-{run['settings']}-{run['memory'] >> 20}" for i, run in enumerate(LINES)])
def test_recorded_scripts(run: dict[str, Any]) -> None:
    """Every action, its address and size, the final block map and all figures are those of PyTorch's compiled allocator."""
    log: list[Action] = []
    allocator = served(run, log)
    ours = [[a.name, a.address, a.size, a.stream] for a in log if not a.name.startswith("free")]
    assert ours == run["actions"]
    assert [[s.address, "small" if s.small else "large", s.stream, [[b.size, b.requested, b.state] for b in s.blocks]] for s in allocator.segments()] == run[
        "segments"
    ]
    assert {name: getattr(allocator, name) for name in run["figures"]} == run["figures"]


def test_a_snapshot_replayed() -> None:
    """The history in a file that torch.cuda.memory._dump_snapshot wrote gives the file's segments, block by block."""
    (memory,) = read_snapshot(DATA / "allocator_snapshot.pickle").values()
    allocator = replay(events_of(memory.history))
    first = min(entry.addr for entry in memory.history)
    streams = {stream: number for number, stream in enumerate(dict.fromkeys([0, *(entry.stream for entry in memory.history)]))}
    assert len(memory.segments) > 10
    assert [(s.address, s.size, s.stream, s.small, blocks(s)) for s in allocator.segments()] == [
        (s.address - first, s.size, streams[s.stream], s.small, blocks(s)) for s in memory.segments
    ]


def blocks(segment: Segment) -> list[tuple[int, int, str]]:
    """Size, request and state of each block."""
    return [(b.size, b.requested, b.state) for b in segment.blocks]
