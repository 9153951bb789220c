"""Layouts of Megatron beside SimuMax, in one process each: no layout is asked for twice.

SimuMax is in no package index: `python benchmarks/bench_simumax.py FOLDER` takes a checkout of github.com/MooreThreads/SimuMax; its requirements go into an
environment of their own under `.venv-peers`. Prints a table and writes it to results.md.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench_peers import Peer, interpreter
from results import table, write_section

from everybyte import estimate, headline

HERE = Path(__file__).parent
PACKAGES = ("numpy", "pandas", "sympy", "tabulate", "matplotlib", "tqdm", "graphviz")
LAYOUTS = 100
MODELS = ("meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-70B")
Row = tuple[str, int, int, int, int, int]
"""Model, tensor and pipeline parallel size, GPUs, micro-batches, tokens of a sequence."""


def main(folder: str) -> int:
    """Measures, prints, records."""
    python = interpreter(Peer("SimuMax", "simumax", PACKAGES, lambda task, python: None, int))
    if python is None:
        print("what SimuMax needs could not be installed", file=sys.stderr)
        return 2
    rows = draw()
    command = [python, str(HERE / "peers" / "simumax_layouts.py"), folder]
    done = subprocess.run(command, input=json.dumps(rows), check=True, capture_output=True, text=True)
    jobs = [job_of(row) for row in rows]
    headline(jobs[0])
    heads = seconds_of(headline, jobs[1:])
    estimate(jobs[0])
    full = seconds_of(estimate, jobs[1:])
    count = len(rows) - 1
    lines = [
        ["everybyte, headline figures", f"{1000 * heads / count:.2f}"],
        ["everybyte, every rank with rows, formulas and reserved bytes", f"{1000 * full / count:.2f}"],
        ["SimuMax, memory and time", f"{1000 * float(done.stdout.split()[-1]) / count:.2f}"],
    ]
    text = table(["estimator", "ms a layout"], lines)
    print(text)
    words = f"{count} layouts of Llama 3 8B and 70B under Megatron, none of them asked for before; processor time in one process each, its imports not counted."
    write_section("Layouts beside SimuMax", f"{words}\n\n{text}")
    return 0


def draw() -> list[Row]:
    """Different layouts that both can express."""
    drawing = random.Random(11)
    found: dict[Row, None] = {}
    while len(found) <= LAYOUTS:
        tp, pp = drawing.choice((1, 2, 4, 8)), drawing.choice((1, 2, 4, 8))
        length = 1024 * drawing.randint(1, 16)
        found[drawing.choice(MODELS), tp, pp, tp * pp * drawing.choice((1, 2, 4, 8)), drawing.choice((8, 16, 32)), length] = None
    return list(found)


def job_of(row: Row) -> dict[str, Any]:
    """The same layout as a job."""
    model, tp, pp, gpus, micro_batches, length = row
    mesh = {"tp": tp, "pp": pp, "sp": tp > 1}
    train = {"framework": "megatron", "micro_batch": 1, "seq_len": length, "grad_accum": micro_batches, "sharding": "distributed-optimizer", "mesh": mesh}
    return {"model": model, "hardware": {"gpu": "a100-80gb", "gpus": gpus}, "train": train}


def seconds_of(ask: Any, jobs: list[dict[str, Any]]) -> float:
    """Processor time of all jobs."""
    begin = time.process_time()
    for job in jobs:
        ask(job)
    return time.process_time() - begin


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
