"""A job wherever one goes: a job file, or a configuration or script of a framework, which is imported on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everybyte.basics.errors import BadInput
from everybyte.cli.ending import say
from everybyte.job.read import RawJob, parse, text_of

if TYPE_CHECKING:
    from everybyte.formats.finish import Imported

JOB_KEYS = frozenset({"everybyte", "name", "model", "hardware", "env", "train", "serve", "given"})
"""Keys at the top of a job file. A file with another key may be somebody's configuration."""


def load_any(path: str) -> RawJob:
    """The mapping of a job file, or the job of another tool's file. Raises BadInput as the job reader does where no format is recognised."""
    text = text_of(path)
    try:
        raw = parse(text, path)
    except BadInput as fault:
        found = _imported(text, path)
        if found is None:
            raise fault from None
        return found
    if raw.mapping.keys() <= JOB_KEYS:
        return raw
    return _imported(text, path) or raw


def _imported(text: str, path: str) -> RawJob | None:
    """The job of a configuration; None for a text that is no known format. Findings are told on standard error."""
    from everybyte.formats.finish import finish
    from everybyte.formats.read import read
    from everybyte.formats.source import STDIN, STDIN_NAME, Source

    shown = STDIN_NAME if path == STDIN else path
    try:
        drafts = read([Source(text, shown)])
    except BadInput:
        return None
    if not drafts:
        return None
    imported = finish(drafts[0])
    _tell(imported, shown, len(drafts))
    origins = {row.key: row.origin for row in imported.settings}
    return RawJob(imported.job, lambda key: origins.get(key, f"read from {shown}"))


def _tell(imported: Imported, shown: str, count: int) -> None:
    told = [f"read as {imported.framework}"]
    if count > 1:
        told.append(f"the first of its {count} jobs")
    if imported.findings:
        told.append("1 point to check" if len(imported.findings) == 1 else f"{len(imported.findings)} points to check")
    if imported.unknown:
        told.append("1 unknown key" if len(imported.unknown) == 1 else f"{len(imported.unknown)} unknown keys")
    say(f"note: {shown}: {', '.join(told)}; `everybyte import` shows what was read", to_stderr=True)
