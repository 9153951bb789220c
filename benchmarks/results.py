"""Writes a section of results.md, with the date and the machine that it was measured on."""

from __future__ import annotations

import datetime as dt
import os
import platform
from pathlib import Path

RESULTS = Path(__file__).with_name("results.md")
HEAD = "# Benchmark results\n\nWritten by `make bench` and `make bench-peers`; each section names its date and machine.\n"


def write_section(title: str, body: str) -> None:
    """Replaces the section `title` of results.md, or adds it."""
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else HEAD
    head, *sections = text.split("\n## ")
    kept = [s for s in sections if s.partition("\n")[0] != title]
    kept.append(f"{title}\n\n{machine()}\n\n{body.strip()}\n")
    RESULTS.write_text("\n## ".join([head.rstrip() + "\n", *(s.strip() + "\n" for s in sorted(kept))]), encoding="utf-8")


def machine() -> str:
    """Date, cores, processor and Python of this run."""
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    return f"{today}, {os.cpu_count()} cores ({processor()}), {platform.system()}, Python {platform.python_version()}."


def processor() -> str:
    """The processor's name, as Linux tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def held(fine: bool) -> str:
    """Whether a limit is kept, as a cell."""
    return "yes" if fine else "NO"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table whose first column is text and whose others are numbers."""
    rule = "| --- |" + " ---: |" * (len(head) - 1)
    return "\n".join([f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)])
