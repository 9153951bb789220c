"""Traces of large models: seconds, operations a second, memory, and whether the time grows with the layers alone.

`python benchmarks/bench_trace.py` prints a table, writes it to results.md and exits with 1 when a limit is missed. Limits are for processor time of the
traced process, since other programs share the machine.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from results import table, write_section

from everybyte.trace.request import TraceRequest
from everybyte.trace.run import run

HERE = Path(__file__).resolve()
EXAMPLE = HERE.parents[1] / "examples/trace/titan_llama.py"
STEPS = 2
MOST_GIB = 1.5
STRAIGHT = 0.15
"""Share by which the time of all layers may differ from the straight line through fewer."""
LAYERS = (8, 16, 32)


class Case(NamedTuple):
    """A trace and how long it may take."""

    name: str
    target: str
    world: int
    limit_s: float | None = None


CASES = (
    *(Case(f"Llama 3.1 8B with {layers} layers, 8 GPUs", f"{HERE}:layers_{layers}", 8) for layers in LAYERS),
    Case("Llama 3.1 8B, selective recomputation, 8 GPUs", f"{EXAMPLE}:llama_8b", 8, 30),
    Case("Llama 3.1 8B, selective recomputation, 128 GPUs", f"{EXAMPLE}:llama_8b", 128, 30),
    Case("Llama 3 70B, full recomputation, 64 GPUs", f"{EXAMPLE}:llama_70b", 64, 90),
)


def main() -> int:
    """Measures, prints, records; 1 if a limit is missed."""
    rows, seconds, held = [], {}, True
    for case in CASES:
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        traced = run(TraceRequest(target=case.target, world=case.world, steps=STEPS))
        wall = time.perf_counter() - begin
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        gib = after.ru_maxrss / 2**20  # the largest process so far
        seconds[case.target] = used
        fine = (case.limit_s is None or used <= case.limit_s) and gib <= MOST_GIB
        held &= fine
        limit = "" if case.limit_s is None else f"{case.limit_s:.0f}"
        rows.append([case.name, f"{traced.operations:,}", f"{used:.1f}", f"{wall:.1f}", f"{traced.operations / used:,.0f}", f"{gib:.2f}", limit, _word(fine)])
    low, middle, high = (seconds[case.target] for case in CASES[: len(LAYERS)])
    line = middle + (middle - low) * (LAYERS[2] - LAYERS[1]) / (LAYERS[1] - LAYERS[0])
    straight = abs(high / line - 1) <= STRAIGHT
    text = table(["two steps", "operations", "processor s", "wall s", "operations/s", "GiB at most", "limit s", "held"], rows)
    words = f"{LAYERS[2]} layers take {high / line - 1:+.0%} against the straight line through {LAYERS[0]} and {LAYERS[1]} (limit {STRAIGHT:.0%})."
    print(f"{text}\n{words}")
    write_section("Traces", f"Real memory may be {MOST_GIB} GiB at most. {words}\n\n{text}")
    return 0 if held and straight else 1


def _word(held: bool) -> str:
    return "yes" if held else "no"


def _with_layers(layers: int) -> Callable[[], Callable[[], None]]:
    def build() -> Callable[[], None]:
        sys.path.insert(0, str(EXAMPLE.parent))
        from titan_llama import Settings, training

        return training(replace(Settings(), layers=layers))

    return build


layers_8, layers_16, layers_32 = (_with_layers(layers) for layers in LAYERS)

if __name__ == "__main__":
    sys.exit(main())
