"""Writes jobs."""

from __future__ import annotations

from os import PathLike
from typing import Any

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.job.form import Job
from everybyte.job.shorthand import shorten


def job_to_dict(job: Job) -> dict[str, Any]:
    """What was given, as plain data in the contract's long form. `read_job` of it is the same job."""
    # by way of JSON: lists stay lists, where to_builtins leaves tuples
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(job))
    return plain


def job_to_text(job: Job, ending: str = ".yaml") -> str:
    """The job as YAML or JSON text, with shorthand where one word says all. Raises BadInput for another ending."""
    written = {"everybyte": job.everybyte, **shorten(job_to_dict(job))}
    if ending in (".yaml", ".yml"):
        import yaml

        return yaml.safe_dump(written, sort_keys=False, allow_unicode=True, default_flow_style=False, width=120)
    if ending == ".json":
        return msgspec.json.format(msgspec.json.encode(written), indent=2).decode() + "\n"
    raise BadInput("--save", f"a job is written as .yaml, .yml or .json, not as {ending!r}")


def write_job(job: Job, path: str | PathLike[str]) -> None:
    """Writes the job to a .yaml, .yml or .json file. Raises BadInput if it cannot be written."""
    from pathlib import Path

    target = Path(path)
    text = job_to_text(job, target.suffix.casefold())
    try:
        target.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadInput(str(target), f"cannot be written: {getattr(error, 'strerror', None) or error}") from None
