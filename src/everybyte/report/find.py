"""Finds what somebody asks for in an answer: a kind of rank, rows of its ledger, a setting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.basics.origin import Setting
from everybyte.ledger.answer import Answer, RankAnswer
from everybyte.ledger.entry import Entry
from everybyte.measure.answers import find_rank

__all__ = ["find_entries", "find_rank", "find_setting"]


def find_entries(rank: RankAnswer, name: str) -> tuple[Entry, ...]:
    """The rows called `name`: by id, by the beginning of ids (`weights`), by place (`layers.0-31/mlp`), or by category.

    An id may have several rows that live in different phases. Raises BadInput with the nearest ids.
    """
    folded = name.casefold().strip("/")
    readings: tuple[Callable[[Entry], bool], ...] = (
        lambda e: e.id.casefold() == folded,
        lambda e: e.id.casefold().startswith(f"{folded}/"),
        lambda e: e.id.casefold().endswith(f"/{folded}"),
        lambda e: e.category == folded.replace(" ", "_"),
    )
    for reading in readings:
        found = tuple(e for e in rank.ledger if reading(e))
        if found:
            return found
    ids = list(dict.fromkeys(e.id for e in rank.ledger))
    near = [i for i in ids if folded in i.casefold()][:3]
    hint = f" (did you mean {' or '.join(near)}?)" if near else did_you_mean(name, ids)
    raise BadInput("entry", f"the ledger has no row {name!r}{hint or '; `everybyte explain JOB` lists all rows'}")


def find_setting(answer: Answer, name: str) -> Setting[Any] | None:
    """The setting whose key is `name`, if there is one."""
    return next((setting for setting in answer.settings if setting.key == name), None)
