"""Plans beside calculon's: step times of layouts that were measured, and the search of a cluster, each on one core in a process of its own.

calculon is in no package index (the one of that name there is another): `python benchmarks/bench_calculon.py FOLDER` takes a checkout of
github.com/calculon-ai/calculon, whose validation set has the same eight runs (Korthikanti et al. 2022, table 5). Its requirements go into an environment
of its own under `.venv-peers`. Prints a table and writes it to results.md.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench_peers import Peer, interpreter
from results import table, write_section

from everybyte.cli import OBJECTS_BETWEEN_COLLECTIONS
from everybyte.job import read_job
from everybyte.job.pattern import model_of
from everybyte.models.source import network_of
from everybyte.plan.layouts.asked import asked_for
from everybyte.plan.money import Rent
from everybyte.plan.search import search
from everybyte.plan.time.figures import speed_of

HERE = Path(__file__).parent
TRUTH = HERE.parent / "tests" / "truth" / "speed.jsonl"
RUNS = {"22B": "megatron-22B", "175B": "gpt3-175B", "530B": "turing-530B", "1T": "megatron-1T"}
SEARCHES = {"22B": (8, 32), "175B": (64, 64)}
"""Model -> GPUs, sequences of a step."""


def main(folder: str) -> int:
    """Measures, prints, records."""
    python = interpreter(Peer("calculon", "calculon", ("psutil", "numpy", "pandas"), lambda task, python: None, int))
    if python is None:
        print("what calculon needs could not be installed", file=sys.stderr)
        return 2
    runs = measured_runs()
    layouts = [(RUNS[size], f"{RUNS[size]}_{'seqsel' if mode == 'selective' else mode}") for size, mode, _ in runs]
    searches = [(RUNS[size], *counts) for size, counts in SEARCHES.items()]
    command = [python, str(HERE / "peers" / "calculon_plans.py"), folder]
    done = subprocess.run(command, input=json.dumps([layouts, searches]), check=True, capture_output=True, text=True)
    theirs = json.loads(done.stdout)
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    ours = [own_step(record["job"]) for _, _, record in runs]
    truth = [record["measured"][0]["value"] for _, _, record in runs]
    lines = [
        ["step time of 8 measured layouts, median error", *(f"{100 * statistics.median(errors(steps, truth)):.1f} %" for steps in (ours, theirs["steps"]))],
        ["the same, largest error", *(f"{100 * max(errors(steps, truth)):.1f} %" for steps in (ours, theirs["steps"]))],
    ]
    for size, found in zip(SEARCHES, theirs["searches"], strict=True):
        job = next(record["job"] for name, _, record in runs if name == size)
        tried, seconds = own_search(job, *SEARCHES[size])
        gpus = SEARCHES[size][0]
        lines += [
            [f"{size} on {gpus} A100: layouts of the search", f"{tried:,}", f"{found['total']:,}"],
            [f"{size} on {gpus} A100: ms a layout", f"{1000 * seconds / tried:.3f}", f"{1000 * found['each']:.3f}"],
            [f"{size} on {gpus} A100: seconds of the search", f"{seconds:.2f}", f"{found['each'] * found['total']:,.0f} (from a sample)"],
        ]
    text = table(["what", "everybyte", "calculon"], lines)
    print(text)
    words = (
        "Runs of Korthikanti et al. 2022, table 5, which calculon's authors fitted its A100 to; one core, a process each, imports not "
        "counted. calculon's memory is a sum of closed formulas; everybyte's is the ledger's, with its 90 % interval, and a replay of the allocator for the "
        "plans that are shown."
    )
    write_section("Plans beside calculon", f"{words}\n\n{text}")
    return 0


def measured_runs() -> list[tuple[str, str, dict[str, Any]]]:
    """Model, way of recomputing, record of each run."""
    found = []
    with TRUTH.open(encoding="utf-8") as file:
        for line in file:
            if '"id": "ko-' in line:
                record = json.loads(line)
                _, size, mode = record["id"].split("-")
                found.append((size, mode, record))
    return found


def own_step(job: dict[str, Any]) -> float:
    """Seconds of a step as predicted."""
    speed = speed_of(read_job(job), network_of(model_of(read_job(job)), "model"))
    assert not isinstance(speed, str), speed
    return dict(speed.figures)["step.time_s"]


def own_search(job: dict[str, Any], gpus: int, batch: int) -> tuple[int, float]:
    """(layouts, seconds) of the search for the top 50."""
    begin = time.process_time()
    found = search(asked_for(read_job(job), gpus, global_batch=batch), Rent(None), top=50)
    return found.examined, time.process_time() - begin


def errors(steps: list[float], truth: list[float]) -> list[float]:
    """|predicted - measured| / measured."""
    return [abs(step - value) / value for step, value in zip(steps, truth, strict=True)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
