"""What dropped logs and memory snapshots say. They are read out of memory in worker processes; nothing is written anywhere."""

from __future__ import annotations

import binascii
from io import BytesIO

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.job import Job, read_job
from everybyte.web.bodies import read
from everybyte.web.forms import DoctorAnswer, DroppedFile, LogAsked, LogFiguresAnswer, RawJob, SnapshotAnswer, SnapshotAsked

PLACE = "file"
"""What messages call a dropped file without a name."""


def doctor(body: bytes) -> bytes:
    """What `everybyte doctor --json` prints, and its screen."""
    from everybyte.diagnose.doctor import diagnose
    from everybyte.report import doctor as report

    asked = read(body, LogAsked)
    found = diagnose(BytesIO(_content(asked.file)), _job(asked.job))
    return msgspec.json.encode(DoctorAnswer(diagnosis=report.as_json(found), lines=tuple(line.plain for line in report.screen(found))))


def snapshot(body: bytes) -> bytes:
    """What `everybyte snapshot --json` prints."""
    from everybyte.measure.snapshots.analysis import analysed
    from everybyte.measure.snapshots.read import snapshot_of
    from everybyte.report import snapshot as report

    file = read(body, SnapshotAsked).file
    content = _content(file)
    memory = snapshot_of(BytesIO(content), len(content), _named(file))
    found = report.as_json([analysed(number, one) for number, one in memory.items()])
    return msgspec.json.encode(SnapshotAnswer(schema=found["schema"], devices=tuple(found["devices"])))


def figures(body: bytes) -> bytes:
    """What `everybyte read --json` prints, and the job's predictions beside it."""
    from everybyte.measure.start_logs.read import read as figures_of
    from everybyte.plan.answer import answered

    asked = read(body, LogAsked)
    job = _job(asked.job)
    found = figures_of(BytesIO(_content(asked.file)), _named(asked.file)).as_dict()
    predicted = answered(job).figures if job is not None else None
    return msgspec.json.encode(LogFiguresAnswer(**found, predicted=predicted))


def _job(raw: RawJob | None) -> Job | None:
    return read_job(raw) if raw is not None else None


def _named(file: DroppedFile) -> str:
    return file.name[:200] or PLACE


def _content(file: DroppedFile) -> bytes:
    """The bytes of a file, which must be whole. Raises BadInput."""
    try:
        content = binascii.a2b_base64(file.base64, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise BadInput("file.base64", f"is no base64: {error}") from None
    if file.size is not None and file.size != len(content):
        raise BadInput("file.size", f"is {file.size:,} and {len(content):,} bytes are here: a log or a snapshot is read whole")
    return content
