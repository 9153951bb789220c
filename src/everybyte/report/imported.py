"""What an import read, for programs and for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from everybyte.basics.units import GiB
from everybyte.formats.finding import Finding
from everybyte.formats.finish import Imported, Row
from everybyte.job.shorthand import HEAD_KEY, shorten
from everybyte.report.as_json import head

LONGEST_BRACES = 80
"""A mapping that is longer has a line for each of its keys."""
COMMENT_COLUMN = 44
"""Where the origins stand beside a job."""


def imported_object(imported: Imported) -> dict[str, Any]:
    """One job as the contract's object."""
    return {
        **head(imported.name),
        "format": imported.framework,
        "job": imported.job,
        "settings": [msgspec.to_builtins(row) for row in imported.settings],
        "findings": [msgspec.to_builtins(finding) for finding in imported.findings],
        "unknown": [msgspec.to_builtins(unknown) for unknown in imported.unknown],
        "missing": [msgspec.to_builtins(missing) for missing in imported.missing],
    }


def jobs_text(jobs: Sequence[Imported], *, explain: bool) -> str:
    """Each job as YAML with origins as comments, or, to explain, its settings in groups; several are documents of one stream."""
    texts = [_explained(imported) if explain else job_text(imported) for imported in jobs]
    if len(jobs) == 1:
        return texts[0]
    titles = (f"# job {number} of {len(jobs)}{': ' + job.name if job.name else ''}" for number, job in enumerate(jobs, 1))
    return "\n---\n".join(f"{title}\n{text}" for title, text in zip(titles, texts, strict=True))


def notes_text(jobs: Sequence[Imported]) -> str:
    """Findings, missing and unknown keys of the jobs, a line each."""
    return "\n".join(note for imported in jobs for note in _notes(imported))


def job_text(imported: Imported) -> str:
    """The job as YAML; each line that holds a setting ends with its origin."""
    if not imported.job:
        return "{}  # no setting of a job in it"
    origins = {row.key: row.origin for row in imported.settings}
    lines: list[str] = []
    path: list[str] = []
    for line in _yaml_lines(shorten(imported.job)):
        depth = (len(line) - len(line.lstrip())) // 2
        key, _, value = line.strip().partition(":")
        path = [*path[:depth], key]
        origin = _origin(path, origins) if value else ""
        lines.append(f"{line:<{COMMENT_COLUMN}}  # {origin}" if origin else line)
    return "\n".join(lines)


def _yaml_lines(job: dict[str, Any]) -> Iterator[str]:
    """A job as YAML with a line for each setting of `train` and `serve`; what lies deeper stands in braces as long as it is short."""
    for key, value in job.items():
        yield from _entry(key, value, "", opened=key in ("train", "serve"))


def _entry(key: str, value: Any, indent: str, *, opened: bool = False) -> Iterator[str]:
    """The lines of one key."""
    import yaml

    is_branch = isinstance(value, dict | list | tuple)
    text: str = yaml.safe_dump(value if is_branch else {key: value}, sort_keys=False, allow_unicode=True, default_flow_style=is_branch, width=10**6)
    if isinstance(value, dict) and value and (opened or len(text) > LONGEST_BRACES):
        yield f"{indent}{key}:"
        for name, inner in value.items():
            yield from _entry(name, inner, indent + "  ")
    else:
        yield f"{indent}{key}: {text.rstrip()}" if is_branch else f"{indent}{text.rstrip()}"


def _origin(path: Sequence[str], origins: dict[str, str]) -> str:
    """The origin of the setting that a line of YAML holds; a line of several names those that differ."""
    here = ".".join(path)
    heads = HEAD_KEY.get(path[0], {})
    found = origins.get(here) or (origins.get(f"{here}.{heads[path[1]]}") if len(path) == 2 and path[1] in heads else None)
    if found:
        return found
    inside = list(dict.fromkeys(origin for key, origin in origins.items() if key.startswith(here + ".")))
    return ", ".join(inside[:3])


def _explained(imported: Imported) -> str:
    """Settings in three groups."""
    lines: list[str] = []
    titles = {"stated": "stated", "inferred": "inferred from what is stated", "default": f"defaults of {imported.framework}"}
    for basis, title in titles.items():
        rows = [row for row in imported.settings if row.basis == basis]
        if rows:
            lines += [title, *(_row(row) for row in rows)]
    return "\n".join(lines)


def _row(row: Row) -> str:
    return f"  {row.key:<32} {_shown(row.value):<28} {row.origin}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _notes(imported: Imported) -> list[str]:
    """Findings, missing and unknown keys, a line each."""
    lines = [_finding(finding) for finding in imported.findings]
    lines += [f"missing: {missing.key}: {missing.message}" for missing in imported.missing]
    if imported.unknown:
        shown = "; ".join(f"{unknown.key} ({unknown.place})" for unknown in imported.unknown)
        lines.append(f"unknown keys, not read: {shown}")
    return lines


def _finding(finding: Finding) -> str:
    way_out = f" {finding.remedy[0].upper()}{finding.remedy[1:]}." if finding.remedy else ""
    return f"{finding.severity}: {finding.place}: {finding.message}.{way_out}{_effect(finding)}"


def _effect(finding: Finding) -> str:
    """What the remedy changes at the peak."""
    if finding.effect_bytes is None:
        return ""
    word = "saves" if finding.effect_bytes > 0 else "takes"
    return f" It {word} {abs(finding.effect_bytes) / GiB:.2f} GiB at the peak."
