"""What the server says of measured runs. Each run is answered once and kept: all of them together take half a minute."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from everybyte.basics.errors import BadInput, EverybyteError
from everybyte.estimator import estimate
from everybyte.job import Job, read_job
from everybyte.ledger.answer import Answer
from everybyte.measure.accuracy import Comparison, Record, Summary, Wanted, compare, summarise, summary_of
from everybyte.measure.same_kind import runs_like
from everybyte.measure.truth import load_records
from everybyte.report.as_json import truth_object

ALL = Wanted(lambda _: True, lambda _: True)


def by_groups(pattern: str) -> dict[str, Any]:
    """Errors by group and figure, of the groups whose whole name matches. Raises BadInput for what is no regular expression, or matches nothing."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise BadInput("group", f"{pattern[:80]!r} is not a regular expression: {error}") from None
    found = _compared(record for record in load_records() if wanted.fullmatch(record["group"]))
    if not found:
        raise BadInput("group", f"no group of records matches {pattern[:80]!r}")
    return truth_object(summarise(found), summary_of("all", "", found), None, [])


def like(job: Job) -> tuple[int, list[Comparison], list[Summary]]:
    """How many measured runs are of the job's kind, their figures predicted and measured, and the errors by group."""
    records = runs_like(job)
    found = _compared(records)
    return len(records), found, summarise(found)


def _compared(records: Iterable[Record]) -> list[Comparison]:
    return [comparison for record in records for comparison in _of_run(msgspec.json.encode(record))]


@lru_cache(maxsize=4096)
def _of_run(record: bytes) -> list[Comparison]:
    return compare(msgspec.json.decode(record), ALL, _predict)


def _predict(job: dict[str, Any]) -> Answer:
    try:
        return estimate(read_job(job))
    except EverybyteError:
        raise
    except Exception as fault:
        raise EverybyteError(f"internal error: {type(fault).__name__}") from fault
