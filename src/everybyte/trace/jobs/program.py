"""From a job file to what is asked of a trace, and in the process of the trace to what runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everybyte.basics.errors import Unsupported
from everybyte.job import Job, job_to_dict, read_job
from everybyte.trace.jobs.plan import plan_of
from everybyte.trace.request import DEFAULT_GPU, TraceRequest

if TYPE_CHECKING:
    from everybyte.trace.recording.clock import Clock

FILES = (".yaml", ".yml", ".json", ".toml")
"""How a target ends that is a job."""


def is_job(target: str) -> bool:
    """Whether a target is a job's file, not a program."""
    return Path(target).suffix in FILES


def asked_of(job: Job | dict[str, Any] | str, gpu: str | None = None, steps: int = 2) -> TraceRequest:
    """The trace of a job: on `gpu`, else on the one that it names. Raises BadInput or Unsupported with the key of what a trace cannot follow."""
    target = job if isinstance(job, str) else ""
    job = job if isinstance(job, Job) else read_job(job)
    plan_of(job)
    named = job.hardware.gpu if job.hardware else None
    if gpu is None and named is not None and not isinstance(named, str):
        raise Unsupported("hardware.gpu", "kernels are chosen by the GPU's kind: name one of the catalogue, or give --gpu")
    chosen = gpu or named or DEFAULT_GPU
    return TraceRequest(target=job.name or target, job=job_to_dict(job), gpu=str(chosen), steps=steps)


def run_of(job: dict[str, Any]) -> Callable[[Clock], None]:
    """What builds the job's program and runs its steps."""
    plan = plan_of(read_job(job))

    def run(clock: Clock) -> None:
        from everybyte.trace.jobs.loops import step_of
        from everybyte.trace.recording.clock import run_steps

        run_steps(step_of(plan), clock)

    return run
