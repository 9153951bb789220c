"""Snapshots with known answers: totals, categories, lines, fragmentation and growth come out as they were put in."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from everybyte.basics.errors import BadInput
from everybyte.basics.units import MiB
from everybyte.cli.app import group
from everybyte.measure.snapshots.analysis import DeviceAnalysis, analysed
from everybyte.measure.snapshots.read import read_snapshot
from everybyte.measure.snapshots.timeline import history_of

Frames = list[dict[str, Any]]


def stack(*places: str) -> Frames:
    """Frames from `file:line:function`, innermost first."""
    return [{"filename": p.split(":")[0], "line": int(p.split(":")[1]), "name": p.split(":")[2]} for p in places]


LOAD = stack("/env/site-packages/torch/nn/modules/module.py:1:convert", "train.py:10:main")
FORWARD = stack("/env/site-packages/torch/nn/functional.py:1:linear", "/env/site-packages/torch/nn/modules/module.py:9:_call_impl", "model.py:33:forward")
BACKWARD = stack("torch/csrc/autograd/engine.cpp:0:evaluate_function")
OPTIMIZER = stack("/env/site-packages/torch/optim/adamw.py:7:_init_group", "train.py:30:main")
DATA = stack("/env/site-packages/accelerate/utils/operations.py:7:send_to_device", "train.py:20:main")


class Writer:
    """Writes a history as PyTorch does, one segment of its own for each block."""

    def __init__(self) -> None:
        self.trace: list[dict[str, Any]] = []
        self.there: dict[int, tuple[int, Frames]] = {}
        self.address = 1 << 20

    def make(self, size: int, frames: Frames) -> int:
        """Allocates; the address."""
        self.address += 64 * MiB
        self.trace.append({"action": "segment_alloc", "addr": self.address, "size": size, "stream": 0, "frames": []})
        self.trace.append({"action": "alloc", "addr": self.address, "size": size, "stream": 0, "frames": frames})
        self.there[self.address] = (size, frames)
        return self.address

    def free(self, address: int) -> None:
        """Frees, and gives the segment back."""
        size, _ = self.there.pop(address)
        for action in ("free_requested", "free_completed", "segment_free"):
            self.trace.append({"action": action, "addr": address, "size": size, "stream": 0, "frames": []})

    def content(self, *, history: bool = True) -> dict[str, Any]:
        """The snapshot at this instant."""
        segments = [
            {
                "device": 0,
                "address": address,
                "total_size": size,
                "stream": 0,
                "segment_type": "large",
                "blocks": [{"size": size, "requested_size": size, "state": "active_allocated", "frames": frames}],
            }
            for address, (size, frames) in self.there.items()
        ]
        return {"segments": segments, "device_traces": [self.trace if history else []]}


def a_step(writer: Writer, layers: int = 4) -> dict[str, int]:
    """A training step with sizes that tell the categories apart; the true bytes at the end, after two steps."""
    for _ in range(layers):
        writer.make(8 * MiB, LOAD)
    batch = writer.make(1 * MiB, DATA)
    for step in range(2):
        kept = []
        for _ in range(layers):
            kept.append(writer.make(4 * MiB, FORWARD))
            writer.free(writer.make(2 * MiB, FORWARD))
        gradients = []
        for address in reversed(kept):
            writer.free(writer.make(3 * MiB, BACKWARD))
            gradients.append(writer.make(8 * MiB, BACKWARD))
            writer.free(address)
        if step == 0:
            for _ in range(2 * layers):
                writer.make(16 * MiB, OPTIMIZER)
        writer.free(writer.make(8 * MiB, OPTIMIZER))
        if step == 0:
            for address in gradients:
                writer.free(address)
    del batch
    return {"parameter": 8 * layers * MiB, "optimizer_state": 32 * layers * MiB, "gradient": 8 * layers * MiB, "input": MiB}


def read_back(content: Any, folder: Path, protocol: int = 4, *, packed: bool = False) -> DeviceAnalysis:
    """The analysis of device 0 of a content, by way of a file."""
    path = folder / "snapshot.pickle"
    data = pickle.dumps(content, protocol=protocol)
    path.write_bytes(gzip.compress(data) if packed else data)
    (memory,) = read_snapshot(path).values()
    return analysed(0, memory)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("packed", [False, True])
def test_categories_of_a_step(protocol: int, packed: bool, tmp_path: Path) -> None:
    """Parameters, states, gradients and inputs of a step are told apart, whatever protocol the file has, compressed or not."""
    writer = Writer()
    truth = a_step(writer)
    found = read_back(writer.content(), tmp_path, protocol, packed=packed)
    assert {held.name: held.now for held in found.categories if held.now} == truth
    at_peak = {held.name for held in found.categories if held.peak}
    assert {"parameter", "gradient", "optimizer_state"} <= at_peak


def test_activations_are_what_lives_until_backward(tmp_path: Path) -> None:
    """At the highest instant of forward, what layers keep is activation and what they use for themselves is temporary."""
    writer = Writer()
    for _ in range(4):
        writer.make(1 * MiB, LOAD)
    kept = [writer.make(32 * MiB, FORWARD) for _ in range(3)]
    inner = writer.make(16 * MiB, FORWARD)
    writer.free(inner)
    for address in reversed(kept):
        writer.free(writer.make(1 * MiB, BACKWARD))
        writer.free(address)
    peaks = {held.name: held.peak for held in read_back(writer.content(), tmp_path).categories}
    assert peaks["activation"] == 96 * MiB
    assert peaks["temporary"] == 16 * MiB


def test_totals_without_a_history(tmp_path: Path) -> None:
    """A snapshot that has only blocks still says what is allocated, and by which line."""
    writer = Writer()
    writer.make(8 * MiB, LOAD)
    found = read_back(writer.content(history=False), tmp_path)
    assert (found.history.allocated_now, found.history.reserved_now) == (8 * MiB, 8 * MiB)
    assert found.lines[0].name == "train.py:10 main"


def test_what_is_older_than_the_history_counts(tmp_path: Path) -> None:
    """A block that was there before the history began and was freed in it belongs to the peak."""
    writer = Writer()
    old = writer.make(100 * MiB, LOAD)
    writer.trace.clear()
    writer.make(10 * MiB, FORWARD)
    writer.free(old)
    history = history_of(next(iter(read_of(writer, tmp_path).values())))
    assert (history.allocated_peak, history.allocated_now) == (110 * MiB, 10 * MiB)


def read_of(writer: Writer, folder: Path) -> Any:
    """The memory of a writer's snapshot."""
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(writer.content()))
    return read_snapshot(path)


def test_a_leak_is_named_by_its_line(tmp_path: Path) -> None:
    """A line that keeps something in every step grows, the others do not."""
    writer = Writer()
    writer.make(8 * MiB, LOAD)
    for step in range(60):
        writer.free(writer.make(random.Random(step).randrange(1, 9) * MiB, FORWARD))
        writer.make(1 * MiB, stack("train.py:44:losses"))
    found = read_back(writer.content(), tmp_path)
    assert [row.line for row in found.growth] == ["train.py:44 losses"]


def test_fragmentation_says_what_could_not_serve(tmp_path: Path) -> None:
    """Free blocks below the request that was not served are counted, and the largest is named."""
    blocks = [{"size": size * MiB, "requested_size": size * MiB, "state": state} for size, state in ((4, "inactive"), (2, "active_allocated"), (8, "inactive"))]
    content = {
        "segments": [{"device": 0, "address": 1 << 20, "total_size": 14 * MiB, "stream": 0, "segment_type": "large", "blocks": blocks}],
        "device_traces": [[{"action": "oom", "addr": 0, "size": 10 * MiB, "stream": 0, "frames": []}]],
    }
    fragmentation = read_back(content, tmp_path).fragmentation
    assert (fragmentation.free, fragmentation.largest, fragmentation.could_not_serve) == (12 * MiB, 8 * MiB, 12 * MiB)


def bomb_of_references() -> bytes:
    """One list of a thousand entries that a million devices share."""
    entry = {"action": "alloc", "addr": 1, "size": 1, "stream": 0, "frames": []}
    trace = [entry] * 1000
    return pickle.dumps({"segments": [], "device_traces": [trace] * 100_000}, protocol=4)


HOSTILE = {
    "an endless memo": b"\x80\x04K\x01r" + struct.pack("<I", 0xFFFFFFF0) + b".",
    "a text of 2^62 bytes": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"x.",
    "references without end": bomb_of_references(),
    "half a file": pickle.dumps({"segments": [1, 2, 3]}, protocol=4)[:-4],
    "depth": b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "nothing": b"",
    "broken gzip": b"\x1f\x8b\x08\x00garbage",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(name: str, tmp_path: Path) -> None:
    """Damaged and endless files are refused with one message, in bounded memory."""
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(BadInput, match="snapshot"):
        read_snapshot(path)


def test_the_command(tmp_path: Path) -> None:
    """`snapshot --json` prints one object; an unknown device is refused."""
    writer = Writer()
    a_step(writer)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(writer.content()))
    result = CliRunner().invoke(group, ["snapshot", str(path), "--json"], standalone_mode=False)
    (device,) = json.loads(result.stdout)["devices"]
    assert device["allocated"]["now"] == sum(row["now"] for row in device["categories"])
    assert device["allocated"]["peak"] == sum(row["peak"] for row in device["categories"])
    shown = CliRunner().invoke(group, ["snapshot", str(path)], standalone_mode=False)
    assert "by category" in shown.stdout
    from everybyte.cli.app import run

    assert run(["snapshot", str(path), "--device", "7"]) == 2
