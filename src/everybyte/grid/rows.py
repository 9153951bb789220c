"""The row of a case. This runs in worker processes, here or on a cluster: whatever is wrong with a combination is its row, and stops no other."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from everybyte.basics.errors import EverybyteError
from everybyte.basics.version import __version__
from everybyte.grid.cases import Case
from everybyte.job import Job, read_job

if TYPE_CHECKING:
    from everybyte.ledger.answer import Answer

Row = dict[str, Any]
"""Column -> number, word, switch or None."""
ERROR = "error"
"""The column of why there is no answer."""
FIGURE = "peak.device"

_one_at_a_time = threading.Lock()
"""Answers are pure Python: threads of one worker would only share the caches and slow one another."""


def row_of(case: Case) -> Row:
    """The columns of the combination, then its figures, or the reason why there are none."""
    start = time.perf_counter()
    found: Row = {}
    try:
        found = _figures(case)
        error = None
    except EverybyteError as refused:
        error = str(refused)
    except Exception as fault:  # noqa: BLE001  # one combination must not take the others down with it
        error = f"internal error: {type(fault).__name__}: {fault}"
    return {**case.values, **found, ERROR: error, "seconds": round(time.perf_counter() - start, 4), "everybyte": __version__}


def lost(case: Case, why: str) -> Row:
    """The row of a combination whose process ended."""
    return {**case.values, ERROR: why, "seconds": None, "everybyte": __version__}


def _figures(case: Case) -> Row:
    if case.ask == "trace":
        return _of_answer(_traced(case))
    assert case.job is not None
    with _one_at_a_time:
        job = read_job(case.job)
        return _quick(job) if case.ask == "quick" else _of_answer(_estimated(job))


def _estimated(job: Job) -> Answer:
    from everybyte.plan.answer import answered

    return answered(job, advise=False)


def _quick(job: Job) -> Row:
    from everybyte.plan.quick import quick

    found = quick(job, times=True)
    return {
        "fits": found.fits,
        "capacity": found.capacity or None,
        "headroom": found.capacity - found.peak_device if found.capacity else None,
        "rank": found.rank,
        "phase": found.phase,
        "peak.allocated": found.peak_allocated,
        FIGURE: found.peak_device,
        f"{FIGURE}.high": found.peak_device_high,
        "host.bytes": found.host,
        **({"step.time_s": found.step_s} if found.step_s is not None else {}),
    }


def _traced(case: Case) -> Answer:
    """A trace runs in a process of its own, which several threads may start at once."""
    from everybyte.allocator.settings import read_alloc_conf
    from everybyte.trace.api import trace
    from everybyte.trace.request import DEFAULT_GPU, TraceRequest
    from everybyte.trace.results.answer import answer_of_ranks
    from everybyte.trace.run import run_ranks

    if case.job is not None:
        return trace(read_job(case.job))
    own = case.options
    asked = TraceRequest(
        target=case.program,
        arguments=case.arguments,
        optimizer=own.get("optimizer"),
        gpu=str(own.get("gpu", DEFAULT_GPU)),
        steps=int(own.get("steps", 2)),
        world=int(own.get("world", 1)),
        folder=os.getcwd(),
    )
    return answer_of_ranks(run_ranks(asked, (0,)), read_alloc_conf(str(own.get("alloc_conf", "")), "alloc_conf"))


def _of_answer(answer: Answer) -> Row:
    ends = answer.range.get(FIGURE)
    return {
        "fits": answer.fits,
        "verdict": answer.verdict,
        "capacity": answer.hardware.capacity if answer.hardware else None,
        "headroom": answer.headroom,
        "rank": answer.worst.label,
        "phase": answer.worst.peak_phase,
        **answer.figures,
        **({f"{FIGURE}.low": round(ends[0]), f"{FIGURE}.high": round(ends[1])} if ends else {}),
        "warnings": "; ".join(answer.warnings),
    }
