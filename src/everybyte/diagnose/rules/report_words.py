"""A report in a person's own words: no log, but it says what was seen."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from everybyte.diagnose.evidence import Evidence
from everybyte.diagnose.suspicion import Suspicion


@cache
def _signs() -> tuple[tuple[str, float, re.Pattern[str]], ...]:
    rows = tomllib.loads((files("everybyte.diagnose") / "data/reports.toml").read_text(encoding="utf-8"))["sign"]
    return tuple((row["cause"], row["weight"], re.compile(row["pattern"])) for row in rows)


def suspect(e: Evidence) -> Iterator[Suspicion]:
    """Signs in a short text, where neither a frame nor the wording of a message decides. The first words weigh most: a title says what it is about."""
    told = e.scan.report
    if not told or e.place is not None or (e.message is not None and (e.message.form.causes or e.message.other)):
        return
    for cause, weight, pattern in _signs():
        found = pattern.search(told)
        if found is not None:
            early = 1.0 if found.start() < 200 else 0.8
            yield Suspicion(cause, round(weight * early * (0.75 if e.message is not None else 1), 2), f"the report says: {found.group()!r}")
