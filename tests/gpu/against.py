"""The trace of each measured job against what happened: on the GPU, by the memory snapshots that measure.py has saved; on the CPU, by torch's profiler.

What is traced is the loop that was measured (run_job.py, loop.py, build.py): a process of the trace runs it on fake tensors.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from align import Alignment, Difference, align, only_one
from course import StepTimeline, of_history, of_trace
from jobs import JOB, RUNS, STEPS, TRACED_ON

from everybyte.allocator.replay import replay
from everybyte.allocator.settings import read_alloc_conf
from everybyte.basics.errors import EverybyteError
from everybyte.measure.snapshots.read import DeviceMemory, events_of, read_snapshot
from everybyte.trace.request import Failed, TraceRequest
from everybyte.trace.run import TraceFailed, run

Fields = dict[str, Any]
HERE = Path(__file__).resolve().parent
PROGRAM = f"{HERE / 'run_job.py'}:program"
SHOWN = 20
"""Places of a part at which details are shown, events of one place, and storages of a peak."""


@dataclass(frozen=True)
class Found:
    """What happened and what was traced of a job."""

    name: str
    real: StepTimeline
    traced: StepTimeline

    @property
    def parts(self) -> list[Alignment]:
        """The building and each run; a part that only one side has cannot be laid beside the other."""
        return [align(self.real, self.traced, part) for part in self.real.parts if part in self.traced.parts]

    @property
    def last(self) -> str:
        """The run whose peak is measured."""
        return list(self.real.parts)[-1]

    @property
    def peaks(self) -> tuple[int, int]:
        """Bytes at the peak of the last run, of what happened and of the trace."""
        return self.real.peak(self.last)[0], self.traced.peak(self.last)[0]


def times(job: Fields) -> int:
    """How often a job is run."""
    return STEPS if "train" in job else RUNS


@contextlib.contextmanager
def told(job: Fields, device: str) -> Iterator[None]:
    """While entered, run_job.program is that of a job."""
    os.environ |= {JOB: json.dumps(job), TRACED_ON: device}
    try:
        yield
    finally:
        del os.environ[JOB], os.environ[TRACED_ON]


def traced_on_gpu(job: Fields, gpu: str) -> StepTimeline:
    """The course of a job on a fake GPU of the catalogue. Raises EverybyteError where it cannot be traced."""
    with told(job, "cuda"):
        return of_trace(run(TraceRequest(target=PROGRAM, gpu=gpu, steps=times(job))), gpu)


# -- run on the CPU -----------------------------------------------------------------------------------------------------------------
def against_cpu(name: str, job: Fields) -> Found:
    """A small job on the CPU beside its trace, which needs no fake device and so no process of its own. Raises EverybyteError where there is no trace."""
    from profiled import profiled
    from run_job import program

    from everybyte.trace.worker import trace

    with told(job, "cpu"):
        seen = trace(TraceRequest(target=PROGRAM, steps=times(job), device="cpu"))
        if isinstance(seen, Failed):
            raise TraceFailed(seen)
        return Found(name, profiled(program, times(job)), of_trace(seen, None))


# -- measured on a GPU --------------------------------------------------------------------------------------------------------------
def saved(folder: Path) -> dict[str, Fields]:
    """The newest result of each job in a folder of measure.py."""
    lines = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return {result["name"]: result for result in map(json.loads, lines)}


def against_snapshot(result: Fields, snapshot: Path) -> tuple[Found, str]:
    """A measured job beside its trace, and whether the allocator's simulator makes the segments of the GPU out of the GPU's events."""
    (memory,) = read_snapshot(snapshot).values()
    environment = result["environment"]
    course = traced_on_gpu(result["job"], environment["gpu"])
    return Found(result["name"], of_history(memory.history), course), segments(memory, environment["alloc_conf"])


def segments(memory: DeviceMemory, alloc_conf: str) -> str:
    """`12 of 12`: how many of the GPU's segments the simulator has, of the same size and for the same kind of request, from the GPU's own events."""
    replayed = replay(events_of(memory.history), read_alloc_conf(alloc_conf, "alloc_conf")).segments()
    ours, theirs = (Counter((s.size, s.small) for s in found) for found in (replayed, memory.segments))
    return f"{(ours & theirs).total()} of {theirs.total()}" + (f", and {(ours - theirs).total()} more" if ours - theirs else "")


def table(folder: Path, names: str, verbose: bool) -> Iterator[str]:
    """Lines: a row for each job of a folder whose name matches and that left a snapshot; with `verbose` where it differs."""
    yield f"{HEAD}  segments by the simulator"
    for name, result in saved(folder).items():
        snapshot = folder / f"{name}.pickle"
        if not re.search(names, name) or not snapshot.exists() or "environment" not in result:
            continue
        try:
            found, segments_found = against_snapshot(result, snapshot)
        except EverybyteError as error:
            yield f"{name:28} no trace: {error}"
            continue
        yield f"{row(found)}  {segments_found}"
        yield from details(found) if verbose else ()
    yield from versions(folder)


def versions(folder: Path) -> Iterator[str]:
    """Says so where the GPU's program ran with other packages than its trace: another version may take other memory."""
    for name, number in {(name, number) for result in saved(folder).values() for name, number in result.get("environment", {}).get("versions", {}).items()}:
        try:
            here = version(name).partition("+")[0]
        except PackageNotFoundError:
            here = "none"
        if here != number.partition("+")[0]:
            yield f"measured with {name} {number}, traced with {here}"


# -- text ---------------------------------------------------------------------------------------------------------------------------
HEAD = f"{'job':28} {'events':>7} {'traced':>7} {'agreed':>8} {'peak':>14} {'traced':>14} {'difference':>10}"


def row(found: Found) -> str:
    """The last run of a job: events and peaks."""
    last, (real, traced) = found.parts[-1], found.peaks
    return f"{found.name:28} {last.events[0]:7} {last.events[1]:7} {last.share:8.2%} {real:14,} {traced:14,} {traced / real - 1:+10.2%}"


def details(found: Found) -> Iterator[str]:
    """Each part with the first places where the courses differ, then what lives at the last peak on one side alone."""
    for part in found.parts:
        yield f"  {part.part}: {part.events[0]} events, {part.events[1]} traced, {part.share:.2%} agree"
        for difference in part.differences[:SHOWN]:
            yield from _place(found, difference)
        if len(part.differences) > SHOWN:
            yield f"    and {len(part.differences) - SHOWN} places more"
    alone = only_one(found.real, found.traced, found.last)
    yield f"  at the peak of {found.last}: " + ("both hold the same" if not alone else f"{len(alone)} storages that one side has alone, the largest:")
    for size, sign, made in alone[:SHOWN]:
        yield f"    {size:14,} {'happened' if sign > 0 else 'traced  '} {made}"


def _place(found: Found, difference: Difference) -> Iterator[str]:
    for word, course, positions in (("happened", found.real, difference.ours), ("traced  ", found.traced, difference.theirs)):
        for position in positions[:SHOWN]:
            number, nbytes = course.events[position]
            yield f"    {position:7} {word} {nbytes:+14,} {course.made[number]}"
        if len(positions) > SHOWN:
            yield f"            {word} and {len(positions) - SHOWN} events more"
