"""Answers from files: those that a command printed as JSON, and the answers to job files."""

from __future__ import annotations

from typing import Any

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.estimator import estimate
from everybyte.job import load
from everybyte.ledger.answer import SCHEMA, Answer, RankAnswer

KEPT = frozenset(Answer.__struct_fields__)


def answer_of_file(path: str) -> Answer:
    """The answer that a JSON file holds (`estimate --json`, `trace --json`), or the answer to a job file. Raises BadInput with the place."""
    raw = load(path)
    if "ranks" not in raw.mapping:
        return estimate(raw.job())
    return _answer(raw.mapping, path)


def find_rank(answer: Answer, label: str | None, option: str = "--rank") -> RankAnswer:
    """The kind of rank called `label`; without one the kind that needs most. Raises BadInput with the known labels."""
    if label is None:
        return answer.worst
    for rank in answer.ranks:
        if rank.label == label:
            return rank
    raise BadInput(option, f"no rank type is called {label!r}; there are {', '.join(rank.label for rank in answer.ranks)}")


def _answer(content: dict[str, Any], path: str) -> Answer:
    if content.get("schema") != SCHEMA:
        raise BadInput(path, f"is an answer of schema {content.get('schema')!r}; this version reads {SCHEMA}")
    settings = [tuple(setting.values()) if isinstance(setting, dict) else setting for setting in content.get("settings", ())]
    kept = {key: value for key, value in content.items() if key in KEPT}
    try:
        return msgspec.convert({**kept, "settings": settings}, Answer)
    except msgspec.ValidationError as error:
        raise BadInput(path, f"is no answer of everybyte: {error}") from None
