"""How long a plan takes: `python benchmarks/bench_plan.py`. Every job that is timed is a layout that was not asked before.

Prints seconds of processor time and the peak of resident memory: the search for the top 50 of more than 20,000 candidates, the complete counts, and `quick`
on layouts in random order.
"""

from __future__ import annotations

import gc
import random
import resource
import time
from collections.abc import Callable
from typing import Any

from everybyte.basics.errors import BadInput
from everybyte.cli import OBJECTS_BETWEEN_COLLECTIONS
from everybyte.job import read_job
from everybyte.plan.layouts.as_job import Jobs
from everybyte.plan.layouts.asked import Asked, asked_for
from everybyte.plan.layouts.legal import space
from everybyte.plan.money import Rent
from everybyte.plan.quick import quick
from everybyte.plan.search import search

KIB_OF_MIB = 1024
LAYOUTS = 1000
"""Layouts that `quick` is timed on."""


def asked(model: str, gpus: int, global_batch: int) -> Asked:
    """A Megatron job whose layout is open."""
    train = {"framework": "megatron", "micro_batch": 1, "seq_len": 8192, "precision": "bf16-master", "optimizer": "adamw", "attention": "te", "kernels": ["te"]}
    return asked_for(read_job({"model": model, "hardware": {"gpu": "h100", "gpus": gpus, "gpus_per_node": 8}, "train": train}), gpus, global_batch=global_batch)


def timed(what: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of processor time of a call, and what it returns."""
    start = time.process_time()
    found = what()
    return time.process_time() - start, found


def quick_of(model: str) -> float:
    """Mean seconds of `quick` over layouts in random order."""
    question = asked(model, 256, 512)
    layouts, jobs = random.Random(16).sample(space(question).layouts, LAYOUTS), Jobs(question)
    ready = [jobs(layout) for layout in layouts]
    first, *others = ready
    quick(first)

    def every() -> int:
        done = 0
        for job in others:
            try:
                quick(job)
            except BadInput:
                continue
            done += 1
        return done

    seconds, count = timed(every)
    return seconds / count


def main() -> None:
    """Prints one line a figure. Garbage is looked for as seldom as in the command."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    seconds, found = timed(lambda: search(asked("meta-llama/Meta-Llama-3-70B", 512, 1024), Rent(None), top=50))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // KIB_OF_MIB
    print(f"top 50 of {found.examined:,} candidates: {seconds:.2f} s, {found.ledgers:,} ledgers, {len(found.plans)} plans, {peak} MiB")
    seconds, found = timed(lambda: search(asked("meta-llama/Meta-Llama-3.1-405B", 1024, 512), Rent(None), complete=True))
    print(f"complete counts of {found.examined:,} candidates: {seconds:.2f} s, {found.ledgers:,} ledgers")
    for model in ("meta-llama/Llama-2-13b-hf", "Qwen/Qwen3-30B-A3B"):
        print(f"quick, {model}: {quick_of(model) * 1000:.2f} ms a layout")


if __name__ == "__main__":
    main()
