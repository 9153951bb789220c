"""Applies a line of advice to a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everybyte.basics.errors import BadInput
from everybyte.job import Job, job_to_dict, read_job
from everybyte.plan.advice.row import MOST_PATHS
from everybyte.plan.start.taken import put

LONG = {short: path for path, short in MOST_PATHS.items()}


def apply(job: Job, change: Mapping[str, Any]) -> Job:
    """The job with a row's `change`; other settings of a part that changes stay. Raises BadInput where it contradicts the job."""
    raw = job_to_dict(job)
    for path, value in change.items():
        put(raw, LONG.get(path, path), value)
    return read_job(raw)


def chosen(rows: tuple[dict[str, Any], ...], number: int, option: str) -> dict[str, Any]:
    """The row of that number, counted from 1. Raises BadInput at `option`."""
    if not rows:
        raise BadInput(option, "there is no advice to apply: the job fits, or nothing that is known helps")
    if not 1 <= number <= len(rows):
        raise BadInput(option, f"there are {len(rows)} lines of advice, not {number}")
    return rows[number - 1]
