"""The measured runs of the same kind as a job: training or serving, the same engine, one GPU or several, with offloading or without."""

from __future__ import annotations

from everybyte.basics.errors import BadInput
from everybyte.catalog.ranges import Kind
from everybyte.engines.registry import kind_of
from everybyte.job import Job, read_job
from everybyte.measure.accuracy import Record
from everybyte.measure.truth import load_records


def runs_like(job: Job) -> list[Record]:
    """The records of the job's kind, in the order of the data. Raises Unsupported where no engine answers the job."""
    wanted = kind_of(job)
    return [record for record in load_records() if _kind_of_record(record) == wanted]


def _kind_of_record(record: Record) -> Kind | None:
    try:
        return kind_of(read_job(record["job"]))
    except BadInput:
        return None
