"""Another fault that came first: what follows from it is no lack of memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from everybyte.diagnose.evidence import Evidence
from everybyte.diagnose.suspicion import Suspicion

SHORT = 40
"""Lines of a person's report."""


def suspect(e: Evidence) -> Iterator[Suspicion]:
    """An index assert, a full disk, a time-out or an illegal access above the message; a log without any message."""
    first = e.scan.other_faults[0] if e.scan.other_faults else None
    if first is not None and (e.message is None or first.line < e.message.line):
        yield Suspicion("not_memory", 0.98, f"line {first.line:,}: {first.form.why or first.text[:80]}, before any message about memory")
    elif e.message is None and not e.facts.deepspeed and not _speaks_of_memory(e.scan.report):
        why = "the log has no message about lack of memory"
        yield Suspicion("not_memory", 0.9, f"{why}, only a warning that was survived" if e.scan.warnings else why)


def _speaks_of_memory(report: str) -> bool:
    """Whether a short text says in words that memory was short."""
    return re.search(r"\bOOMs?\b|out of memory|\b\d+(?:\.\d+)? ?Gi?B\b|memory", report) is not None and len(report.splitlines()) <= SHORT
