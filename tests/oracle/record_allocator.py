"""Records what PyTorch's own compiled CUDA allocator does with random requests, on a machine without a GPU.

fake_cuda.c answers the calls of c10/cuda/CUDACachingAllocator.cpp to the device, so that torch.empty(..., device="cuda") runs the allocator of the
CUDA build and nothing else. `make oracle-allocator` makes the environment and calls this script.

    python record_allocator.py FOLDER    writes data/allocator.jsonl and data/allocator_snapshot.pickle beside this script; FOLDER gets the compiled
                                         fake device
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "allocator.jsonl"
SNAPSHOT = DATA.with_name("allocator_snapshot.pickle")
MIB = 2**20
START = 20 << 32
STREAM_BITS = 40
MEMORY = 1024 * MIB
SCARCE = 300 * MIB
"""Some scripts live in more than this at times, others would reserve more."""
RUNS: tuple[tuple[str, int, int], ...] = (
    ("", MEMORY, 5),
    ("", SCARCE, 5),
    ("expandable_segments:True", MEMORY, 5),
    ("expandable_segments:True", SCARCE, 5),
    ("max_split_size_mb:20", SCARCE, 4),
    ("max_split_size_mb:32,max_non_split_rounding_mb:24", SCARCE, 4),
    ("expandable_segments:True,max_split_size_mb:24", SCARCE, 3),
    ("roundup_power2_divisions:4", MEMORY, 2),
    ("roundup_power2_divisions:[2:2,4:8,8:0,>:1]", MEMORY, 2),
    ("roundup_power2_divisions:[>:2]", MEMORY, 2),
    ("expandable_segments:True,roundup_power2_divisions:2", SCARCE, 2),
    ("garbage_collection_threshold:0.5,per_process_memory_fraction:0.4", MEMORY, 4),
    ("garbage_collection_threshold:0.3", SCARCE, 2),
    ("garbage_collection_threshold:0.4,per_process_memory_fraction:0.5,max_split_size_mb:24", MEMORY, 3),
    ("per_process_memory_fraction:0.3,expandable_segments:True", MEMORY, 3),
    ("large_segment_size_mb:48", SCARCE, 3),
    ("large_segment_size_mb:12,max_split_size_mb:14", SCARCE, 2),
)
"""(PYTORCH_CUDA_ALLOC_CONF, bytes of the device, scripts)."""


def script(rng: random.Random, length: int = 160) -> list[tuple[int, int]]:
    """Random events as everybyte.allocator.replay reads them, on up to three streams."""
    streams = rng.choice([1, 1, 2, 3])
    repeated = [rng.randint(1, 40 * MIB) for _ in range(4)]
    crowd = rng.choice([8, 20, 40])
    alive: list[int] = []
    events: list[tuple[int, int]] = []
    for number in range(1, length + 1):
        chance = rng.random()
        if chance < 0.02:
            events.append((0, 0))
        elif chance < 0.06 and streams > 1:
            events.append((-1 - rng.randrange(streams), 0))
        elif chance < 0.12 and streams > 1 and alive:
            events.append((rng.choice(alive), -1 - rng.randrange(streams)))
        elif alive and (chance > 0.6 or len(alive) >= crowd):
            events.append((alive.pop(rng.randrange(len(alive))), 0))
        else:
            key = (rng.randrange(streams) << STREAM_BITS) + number
            events.append((key, rng.choice([rng.randint(1, MIB), rng.randint(MIB, 10 * MIB), rng.randint(10 * MIB, 60 * MIB), *repeated])))
            alive.append(key)
    return events


class Device:
    """PyTorch on the fake device: serves events and tells what its allocator did."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.fake = ctypes.CDLL(os.environ["FAKE_CUDA"])
        torch.cuda.init()
        self.streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]

    def serve(self, events: list[tuple[int, int]], file: Path | None) -> dict[str, Any]:
        """The allocator's actions, its block map and its figures; a snapshot goes to the file. What cannot be served is left out, as a program that
        catches the error does."""
        memory, held = self.torch.cuda.memory, {}
        memory._record_memory_history("all", context=None, stacks="python", max_entries=100_000)
        for key, nbytes in events:
            if nbytes > 0:
                try:
                    with self.torch.cuda.stream(self.streams[key >> STREAM_BITS]):
                        held[key] = self.torch.empty(nbytes, dtype=self.torch.uint8, device="cuda")
                except self.torch.OutOfMemoryError:
                    continue
            elif nbytes < 0 and key in held:
                held[key].record_stream(self.streams[-1 - nbytes])
            elif nbytes == 0 and key > 0:
                held.pop(key, None)
            elif key < 0:
                self.fake.fake_cuda_finish(int(self.streams[-1 - key].cuda_stream))
            elif key == 0:
                memory.empty_cache()
        if file is not None:
            memory._dump_snapshot(file)
        return self._told(memory._snapshot(), memory.memory_stats())

    def _told(self, snapshot: dict[str, Any], stats: dict[str, int]) -> dict[str, Any]:
        number = {int(s.cuda_stream): i for i, s in enumerate(self.streams)}
        names = ("alloc", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom")
        return {
            "actions": [
                (e["action"], e["addr"] - START if "addr" in e else e["device_free"], e["size"], number[e["stream"]])
                for e in snapshot["device_traces"][0]
                if e["action"] in names
            ],
            "segments": [
                (s["address"] - START, s["segment_type"], number[s["stream"]], [self._block(block) for block in s["blocks"]]) for s in snapshot["segments"]
            ],
            "figures": {
                "allocated": stats["allocated_bytes.all.current"],
                "peak_allocated": stats["allocated_bytes.all.peak"],
                "requested": stats["requested_bytes.all.current"],
                "peak_requested": stats["requested_bytes.all.peak"],
                "reserved": stats["reserved_bytes.all.current"],
                "peak_reserved": stats["reserved_bytes.all.peak"],
                "inactive_split": stats["inactive_split_bytes.all.current"],
                "retries": stats["num_alloc_retries"],
            },
        }

    @staticmethod
    def _block(block: dict[str, Any]) -> tuple[int, int, str]:
        """A free block still names its last request: that is left out."""
        return block["size"], block["requested_size"] * (block["state"] != "inactive"), block["state"]


def record(text: str, memory: int, number: int, fake: Path) -> str:
    """What one script led to, from a process of its own: settings are read when PyTorch starts, and an allocator never forgets all that it was."""
    env = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": text, "FAKE_CUDA_MEMORY": str(memory), "FAKE_CUDA": str(fake), "LD_PRELOAD": str(fake)}
    env |= {"LD_LIBRARY_PATH": str(fake.parent), "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, __file__, "--serve", text, str(memory), str(number)]
    return subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def serve(text: str, memory: int, number: int) -> None:
    """Prints a line of JSON for a script."""
    events = script(random.Random(f"{text} {memory} {number}"))
    device = Device()
    told = device.serve(events, SNAPSHOT if (text, memory, number) == ("", MEMORY, 1) else None)
    print(json.dumps({"torch": device.torch.__version__, "settings": text, "memory": memory, "events": events, **told}, separators=(",", ":")))


def main(folder: Path) -> None:
    """Compiles the fake device, records every run, then writes the file."""
    import triton

    fake = folder.resolve() / "libcuda.so.1"
    include = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", f"-I{include}", str(Path(__file__).with_name("fake_cuda.c")), "-o", str(fake)], check=True)
    nvml = fake.with_name("libnvidia-ml.so.1")
    nvml.unlink(missing_ok=True)
    nvml.symlink_to(fake)
    lines = [record(text, memory, number, fake) for text, memory, count in RUNS for number in range(count)]
    DATA.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} scripts")


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main(Path(sys.argv[1]))
