"""The replay of PyTorch's allocator: seconds for 100,000 events in pure Python, and what the replay of an answer costs.

`python benchmarks/bench_allocator.py` prints a table, writes it to results.md and exits with 1 when the limit is missed.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from results import table, write_section

from everybyte import read_job
from everybyte.allocator.replay import Event, replay
from everybyte.allocator.reserved import peak_reserved
from everybyte.allocator.settings import AllocatorSettings, read_alloc_conf
from everybyte.basics.units import GiB, MiB
from everybyte.estimator import accounted

EVENTS = 100_000
LIMIT_S = 0.1
ROUNDS = 5
EXAMPLES = Path(__file__).parents[1] / "examples"
JOBS = ("llama-3.1-8b-lora-24gb.yaml", "llama-3.2-3b-full-80gb.yaml", "several-gpus/llama-3.1-70b-fsdp2-torchtitan.yaml")
SETTINGS = (
    ("default settings", ""),
    ("expandable segments", "expandable_segments:True"),
    ("whole blocks, rounding", "max_split_size_mb:64,roundup_power2_divisions:4"),
    ("garbage collection", "garbage_collection_threshold:0.6,per_process_memory_fraction:0.9"),
)


def main() -> int:
    """Measures, prints, records; 1 if the limit is missed."""
    events = script()
    rows = []
    for name, text in SETTINGS:
        settings = read_alloc_conf(text)
        rows.append((f"{EVENTS:,} events, {name}", best(lambda s=settings: replay(events, s, total=80 * GiB)), LIMIT_S if not text else None))
    log: list[object] = []
    rows.append((f"{EVENTS:,} events, default settings, all actions told", best(lambda: replay(events, log=log)), None))
    rows.append((f"{EVENTS:,} events, the peak alone", best(lambda: peak_reserved(events)), LIMIT_S))
    for name in JOBS:
        timeline = list(accounted(read_job(EXAMPLES / name))[2].ranks[0].bill.script())
        rows.append((f"peak of {Path(name).stem}, {len(timeline):,} events", best(lambda c=timeline: peak_reserved(c, AllocatorSettings())), None))
    held = all(limit is None or seconds <= limit for _, seconds, limit in rows)
    text = table(
        ["what", "seconds", "limit", "held"],
        [
            [what, f"{seconds:.4f}", f"{limit:g}" if limit else "", "" if limit is None else "yes" if seconds <= limit else "NO"]
            for what, seconds, limit in rows
        ],
    )
    print(text)
    write_section("Allocator", f"Best of {ROUNDS} replays each, seconds of processor time. The events are random, up to 400 blocks at once.\n\n{text}")
    return 0 if held else 1


def script() -> list[Event]:
    """Random events: small, large and often repeated sizes, up to 400 blocks at once."""
    rng = random.Random(1)
    alive: list[int] = []
    events: list[Event] = []
    for key in range(1, EVENTS + 1):
        if alive and (rng.random() < 0.5 or len(alive) > 400):
            events.append((alive.pop(rng.randrange(len(alive))), 0))
        else:
            alive.append(key)
            events.append((key, rng.choice([rng.randint(1, MiB), rng.randint(MiB, 64 * MiB), rng.choice([4, 8, 16, 32]) * MiB])))
    return events


def best(replayed: Callable[[], object]) -> float:
    """Seconds of processor time of the quickest round."""
    times = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        replayed()
        times.append(time.process_time() - begin)
    return min(times)


if __name__ == "__main__":
    sys.exit(main())
