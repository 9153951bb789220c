"""Answers the job that flags stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everybyte.cli.answers import Options, Source, answer_all
from everybyte.cli.flags import raw_job
from everybyte.job import Job, RawJob, write_job
from everybyte.job.flags import Flag

if TYPE_CHECKING:
    from everybyte.plan.start.start import Started


def answer_flags(purpose: str, model: str, flags: Sequence[Flag], options: dict[str, Any]) -> int:
    """Makes the job, fills in what is left open, writes it if --save asks for it, answers it; the exit code."""
    save_to = options.pop("save")
    settings = options.pop("set_")
    given = {name: options.pop(name) for name in list(options) if name.startswith("flag_")}

    def load() -> RawJob:
        return raw_job(purpose, model, flags, given, settings)

    save = None if save_to is None else lambda job: write_job(job, save_to)
    return answer_all([Source(given.get("flag_name") or model, load, start, save)], Options(**options))


def start(job: Job) -> Started:
    """The job with what flags leave open filled in."""
    from everybyte.plan.start.start import started

    return started(job)
