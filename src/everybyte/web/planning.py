"""Answers that search: layouts for a cluster, accelerators for a job; and the job in the words of a framework. They run in worker processes."""

from __future__ import annotations

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.job import job_to_dict, read_job
from everybyte.web.bodies import read
from everybyte.web.forms import ExportAnswer, ExportAsked, HardwareAsked, PlanAsked

EXPLAINED = 3
"""Plans whose neighbours are told."""
OPTIONS = {"--gpus": "gpus", "--fix": "fix", "--only": "only", "--provider": "provider", "--to": "to", "--price": "price", "--global-batch": "global_batch"}
"""Options of commands, by which the functions behind them name what is wrong, and the keys of a request."""


def plan(body: bytes) -> bytes:
    """What `everybyte plan --json` prints, without its head."""
    from everybyte.plan.layouts.asked import read_fixed
    from everybyte.plan.whole import planned
    from everybyte.report.plan import plan_object

    asked = read(body, PlanAsked)
    job = read_job(asked.job)
    own = job.hardware.gpus if job.hardware is not None else None
    gpus = asked.gpus or ((own,) if own else None)
    if gpus is None:
        raise BadInput("gpus", "is needed: neither the request nor hardware.gpus says how many GPUs there are")
    try:
        fixed = read_fixed(asked.fix)
        found = planned(job, gpus, asked.objective, fixed=fixed, top=asked.top, risk=asked.risk, price=asked.price, global_batch=asked.global_batch)
    except BadInput as error:
        raise _renamed(error) from None
    return msgspec.json.encode(plan_object(found, EXPLAINED))


def hardware(body: bytes) -> bytes:
    """What `everybyte hardware --json` prints, without its head, and of each row the job as it runs there."""
    from everybyte.plan.hardware.survey import survey
    from everybyte.report.hardware import survey_object

    asked = read(body, HardwareAsked)
    try:
        found = survey(read_job(asked.job), asked.only, asked.provider, asked.by, asked.most)
    except BadInput as error:
        raise _renamed(error) from None
    answer = survey_object(found, asked.run_tokens, None)
    for shown, row in zip(answer["rows"], found.rows, strict=True):
        shown["job"] = job_to_dict(row.holding.job) if row.holding.job is not None else None
    return msgspec.json.encode(answer)


def export(body: bytes) -> bytes:
    """The job in the words of a framework or an engine."""
    from everybyte.formats.writers import export as written_as

    asked = read(body, ExportAsked)
    try:
        written = written_as(read_job(asked.job), asked.to)
    except BadInput as error:
        raise _renamed(error) from None
    return msgspec.json.encode(ExportAnswer(to=asked.to, files={file.name: file.text for file in written.files}, left_out=dict(written.left_out)))


def _renamed(error: BadInput) -> BadInput:
    """An error at a command's option, told as one at a key of the request."""
    return type(error)(OPTIONS[error.path], error.message) if error.path in OPTIONS else error
