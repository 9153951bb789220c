"""The measured runs of the same kind as a job: training or serving, the same engine, one GPU or several."""

from __future__ import annotations

from everybyte.basics.errors import BadInput
from everybyte.engines.registry import folder_of, runs_on_several
from everybyte.job import Job, read_job
from everybyte.measure.accuracy import Record
from everybyte.measure.truth import load_records

Kind = tuple[str, str, bool]
"""Section (train or serve), engine, and whether several GPUs run the job."""


def kind_of(job: Job) -> Kind:
    """The kind of a job, as the ranges of its figures are learnt by. Raises Unsupported where no engine answers it."""
    return *folder_of(job), runs_on_several(job)


def runs_like(job: Job) -> list[Record]:
    """The records of the job's kind, in the order of the data. Raises Unsupported where no engine answers the job."""
    wanted = kind_of(job)
    return [record for record in load_records() if _kind_of_record(record) == wanted]


def _kind_of_record(record: Record) -> Kind | None:
    try:
        return kind_of(read_job(record["job"]))
    except BadInput:
        return None
