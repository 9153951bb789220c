"""Another fault that came first: what follows from it is no lack of memory."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.diagnose.evidence import Evidence
from everybyte.diagnose.rules import report_words
from everybyte.diagnose.suspicion import Suspicion


def suspect(e: Evidence) -> Iterator[Suspicion]:
    """An index assert, a full disk, a time-out or an illegal access above the message; a log without any message."""
    first = e.scan.other_faults[0] if e.scan.other_faults else None
    if first is not None and (e.message is None or first.line < e.message.line):
        yield Suspicion("not_memory", 0.98, f"line {first.line:,}: {first.form.why or first.text[:80]}, before any message about memory")
    elif e.message is None and not e.facts.deepspeed and not any(report_words.suspect(e)):
        why = "the log has no message about lack of memory"
        yield Suspicion("not_memory", 0.9, f"{why}, only a warning that was survived" if e.scan.warnings else why)
