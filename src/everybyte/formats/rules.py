"""Findings that follow from the settings of a job alone: the rows of `data/rules.csv`.

`when` holds conditions between semicolons: `key=value`, `key!=value`, `key>number`, `key<number` (or `@other.key`), `key?` (stated, inferred or default),
`key!` (absent), `key~text` (the value contains it), `key*name` (the list holds it). `change` is the remedy as a setting, for the effect in bytes.
"""

from __future__ import annotations

import csv
import re
from functools import cache
from os.path import dirname, join
from typing import Any, NamedTuple, cast

from everybyte.formats.draft import JobDraft
from everybyte.formats.finding import Severity
from everybyte.formats.values import boolean, number

_CONDITION = re.compile(r"\s*([\w.]+)(!=|[=<>?!~*])(.*)")


class Condition(NamedTuple):
    """One part of `when`."""

    key: str
    sign: str
    value: str

    def holds(self, draft: JobDraft) -> bool:
        """Whether a draft meets it."""
        found = draft.value(self.key)
        match self.sign:
            case "?":
                return found is not None
            case "!":
                return found is None
            case "!=":
                return str(found).casefold() != self.value
            case "<" | ">":
                return self._compared(draft, found)
        if found is None:
            return False
        if self.sign == "*":
            return isinstance(found, list | tuple) and self.value in found
        return self.value in str(found).casefold() if self.sign == "~" else str(found).casefold() == self.value

    def _compared(self, draft: JobDraft, found: Any) -> bool:
        other = draft.value(self.value[1:]) if self.value.startswith("@") else number(self.value)
        if not isinstance(found, int | float) or not isinstance(other, int | float):
            return False
        return found > other if self.sign == ">" else found < other


class Rule(NamedTuple):
    """One row."""

    id: str
    severity: Severity
    when: tuple[Condition, ...]
    message: str
    remedy: str
    change: dict[str, Any] | None


@cache
def rules() -> tuple[Rule, ...]:
    """All rows, in the order of the file."""
    with open(join(dirname(__file__), "data", "rules.csv"), encoding="utf-8", newline="") as lines:
        return tuple(
            Rule(row["id"], cast("Severity", row["severity"]), _conditions(row["when"]), row["message"], row["remedy"], _change(row["change"]))
            for row in csv.DictReader(lines)
        )


def apply_rules(draft: JobDraft) -> None:
    """Adds a finding for every rule that a draft meets, at the place of its first setting that is there."""
    known = {finding.id for finding in draft.findings}
    for rule in rules():
        if rule.id not in known and all(condition.holds(draft) for condition in rule.when):
            key = next((condition.key for condition in rule.when if condition.key in draft), rule.when[0].key)
            draft.find(rule.id, rule.severity, draft.place(key) or key, f"{key}: {rule.message}", rule.remedy, rule.change)


def _conditions(text: str) -> tuple[Condition, ...]:
    found = []
    for part in text.split(";"):
        match = _CONDITION.fullmatch(part.rstrip())
        if match is None:
            raise ValueError(f"rules.csv: {part!r} is no condition")
        found.append(Condition(match[1], match[2], match[3].strip().casefold()))
    return tuple(found)


def _change(text: str) -> dict[str, Any] | None:
    key, equals, value = text.partition("=")
    if not equals:
        return None
    switch = boolean(value) if value in ("true", "false") else None
    figure = number(value)
    return {key: (None if value == "" else switch if switch is not None else figure if figure is not None else value)}
