"""A draft becomes an answer: the job as a mapping of the contract, its settings with origins, findings, unknown and missing keys."""

from __future__ import annotations

from typing import Any

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.basics.record import Record
from everybyte.formats.draft import JobDraft
from everybyte.formats.finding import Finding, Missing, Unknown
from everybyte.formats.names import settle_model
from everybyte.formats.rules import apply_rules
from everybyte.job.form import Job
from everybyte.job.plain import refuse_unless_plain
from everybyte.job.read import job_from_mapping
from everybyte.job.shorthand import expand
from everybyte.job.write import job_to_dict


class Row(Record, frozen=True):
    """A setting of the job."""

    key: str
    value: Any
    origin: str
    basis: str
    """stated, default or inferred."""


class Imported(Record, frozen=True, kw_only=True):
    """What an import answers for one job."""

    framework: str
    """The format it was read from."""
    name: str
    job: dict[str, Any]
    """In the contract's form; without `model` where none is known."""
    settings: tuple[Row, ...]
    findings: tuple[Finding, ...]
    unknown: tuple[Unknown, ...]
    missing: tuple[Missing, ...]

    @property
    def has_errors(self) -> bool:
        """Whether a finding says that the run will fail or is not what was meant."""
        return any(finding.severity == "error" for finding in self.findings)


PLACEHOLDER = "gpt2"
"""A model that stands in while a partial job is checked against the form."""


def finish(draft: JobDraft) -> Imported:
    """The answer of a draft. A value that no job can hold is left out and becomes a finding."""
    settle_model(draft)
    _one_model(draft)
    apply_rules(draft)
    job = _checked(draft)
    rows = tuple(Row(key, setting.value, setting.origin, draft.basis[key]) for key, setting in draft.settings.items())
    if "model" not in job:
        draft.miss("model", "no model is named; give the file that names it as well, or --model")
    return Imported(
        framework=draft.framework,
        name=draft.name,
        job=job,
        settings=rows,
        findings=_each_once(draft.findings),
        unknown=tuple(draft.unknown),
        missing=tuple(draft.missing),
    )


def _one_model(draft: JobDraft) -> None:
    """A model that is named has its own sizes: those that flags give besides go to `train.extra`."""
    if not isinstance(draft.value("model"), str):
        return
    for key in [key for key in draft.settings if key.startswith("model.")]:
        setting, basis = draft.settings[key], draft.basis[key]
        draft.drop(key)
        if basis == "stated":
            draft.state(f"train.extra.{key.removeprefix('model.shape.')}", setting.value, setting.origin)


def _each_once(findings: list[Finding]) -> tuple[Finding, ...]:
    return tuple({(finding.id, finding.place, finding.message): finding for finding in findings}.values())


def _checked(draft: JobDraft) -> dict[str, Any]:
    """The nested job of a draft; what its form refuses is taken out and reported."""
    for _ in range(len(draft.settings) + 1):
        job = nested({key: setting.value for key, setting in draft.settings.items()})
        fault = _fault(_whole(job))
        if fault is None or not _take_out(draft, fault):
            break
    _contradiction(job, draft)
    return in_order(job, job_to_dict(msgspec.convert(expand(_whole(job)), Job))) if _fault(_whole(job)) is None else job


def in_order(value: Any, template: Any) -> Any:
    """A mapping with its keys in the order of another that holds the same ones, here that of the form; further keys behind them."""
    if not isinstance(value, dict) or not isinstance(template, dict):
        return value
    keys = [*(key for key in template if key in value), *(key for key in value if key not in template)]
    return {key: in_order(value[key], template.get(key)) for key in keys}


def _fault(job: dict[str, Any]) -> BadInput | None:
    """The first value that the form of a job does not allow."""
    try:
        refuse_unless_plain(job)
        msgspec.convert(expand(job), Job)
    except BadInput as fault:
        return fault
    except msgspec.ValidationError as fault:
        from everybyte.job.fault import find_fault

        return find_fault(expand(job), Job) or BadInput("job", str(fault))
    return None


def _contradiction(job: dict[str, Any], draft: JobDraft) -> None:
    """Settings that cannot hold together stay as they were written; the finding says that the job cannot run so."""
    try:
        job_from_mapping(_whole(job))
    except BadInput as fault:
        keys = [key for key in draft.settings if key.startswith(fault.path.partition("[")[0])]
        draft.find("contradiction", "error", draft.place(keys[0]) if keys else fault.path, f"{fault.path}: {fault.message}", "correct one of them")


def _whole(job: dict[str, Any]) -> dict[str, Any]:
    """A partial job with stand-ins for what it lacks."""
    whole = {"model": PLACEHOLDER, **job}
    if "train" not in whole and "serve" not in whole:
        whole["train"] = {}
    return whole


def _take_out(draft: JobDraft, fault: BadInput) -> bool:
    """Takes the setting that a fault is about out of the draft; False if there is none."""
    path = fault.path.partition("[")[0]
    keys = [key for key in draft.settings if key == path or key.startswith(path + ".") or path.startswith(key + ".")]
    if not keys:
        return False
    where = draft.place(keys[0])
    draft.find("impossible-value", "error", where, f"{fault.path}: {fault.message}", "the setting is left out of the job; correct it where it was written")
    for key in keys:
        draft.drop(key)
    return True


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """`{"train.mesh.tp": 2}` -> `{"train": {"mesh": {"tp": 2}}}`, sections in the order of the contract."""
    job: dict[str, Any] = {}
    for key in sorted(flat, key=_order):
        *parts, name = key.split(".")
        branch = job
        for part in parts:
            inner = branch.setdefault(part, {})
            branch = inner if isinstance(inner, dict) else branch.setdefault(f"{part}.", {})
        branch[name] = flat[key]
    return job


_SECTIONS = ("name", "model", "hardware", "env", "train", "serve", "given")


def _order(key: str) -> int:
    head = key.partition(".")[0]
    return _SECTIONS.index(head) if head in _SECTIONS else len(_SECTIONS)
