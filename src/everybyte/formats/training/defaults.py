"""Defaults of frameworks by version: `defaults.csv` holds for each key since which version which default holds."""

from __future__ import annotations

import csv
import re
from functools import cache
from os.path import dirname, join


def release(version: str | None) -> tuple[int, ...]:
    """`v0.22.0` -> (0, 22, 0); without a version the newest."""
    found = tuple(int(part) for part in re.findall(r"\d+", version or "")[:3])
    return found or (10**6,)


def value(framework: str, key: str, version: str | None) -> tuple[str | None, str]:
    """(default as text, version since which it holds) of a key at a version; (None, "") where nothing is known or the key had no default."""
    rows = _table().get((framework, key), ())
    wanted = release(_own(framework, version))
    held = [row for row in rows if release(row[0]) <= wanted]
    if not held:
        return (rows[0][1] or None, rows[0][0]) if rows and version is None else (None, "")
    since, default = held[-1]
    return default or None, since


def _own(framework: str, version: str | None) -> str | None:
    """The framework's own part of `trl 0.13, transformers 4.48`; a bare number is the framework's."""
    if version is None or re.fullmatch(r"v?\d+(\.\w+)*", version.strip()):
        return version
    found = re.search(rf"{re.escape(framework)}\s*[=v ]*\s*(\d+(?:\.\d+)*)", version, re.IGNORECASE)
    return found[1] if found else None


@cache
def _table() -> dict[tuple[str, str], tuple[tuple[str, str], ...]]:
    """(framework, key) -> (since, default) in the order of versions."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    with open(join(dirname(__file__), "defaults.csv"), encoding="utf-8", newline="") as lines:
        for framework, key, since, default in list(csv.reader(lines))[1:]:
            found.setdefault((framework, key), []).append((since, default))
    return {name: tuple(sorted(rows, key=lambda row: release(row[0]))) for name, rows in found.items()}
