"""Which keys of `extra` a job may have: those that its engine reads, and those that its framework has beside them. All others are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.catalog.extra_keys import ELSEWHERE, NO_EFFECT, NOT_COUNTED, KnownKeys, known_keys, tables_of_keys
from everybyte.job.extra import Section, canonical, keys_of
from everybyte.job.plain import LONGEST_KEY, join
from everybyte.rules.accounting.resolved_settings import ResolvedSettings


class Unread(NamedTuple):
    """A key that is known and not read."""

    path: str
    value: Any
    effect: str
    reason: str


def unread_keys(extra: Mapping[str, Any], sections: tuple[type[Section], ...], frameworks: tuple[str, ...], place: str) -> tuple[Unread, ...]:
    """The keys that nothing reads. Raises BadInput for one that the frameworks (the job's, and one whose settings it runs) do not have, with the nearest."""
    read, tables = frozenset[str]().union(*map(keys_of, sections)), [known_keys(name) for name in frameworks if name in tables_of_keys()]
    return tuple(_unread(key, value, read, tables, frameworks[0], place) for key, value in extra.items() if canonical(key) not in read)


def _unread(key: str, value: Any, read: frozenset[str], tables: list[KnownKeys], framework: str, place: str) -> Unread:
    found = next((found for table in tables if (found := table.find(canonical(key))) is not None), None)
    if found is None:
        names = (*sorted(read), *(name for table in tables for name in table.keys))
        raise BadInput(join(place, key), f"unknown key: {framework} has no such setting{did_you_mean(canonical(key)[:LONGEST_KEY], names)}")
    return Unread(join(place, key), value, found.effect, found.reason)


def tell(keys: tuple[Unread, ...], choices: ResolvedSettings) -> None:
    """Records what changes nothing as a setting with the reason, and warns of what is not worked out."""
    for key in keys:
        if key.effect == NO_EFFECT:
            choices.note(key.path, key.value, f"given; no effect on memory: {key.reason}")
        elif key.effect == ELSEWHERE:
            choices.warn(f"{key.path} is not read: the job says it with {key.reason}")
    others = [key.path for key in keys if key.effect == NOT_COUNTED]
    if others:
        choices.warn(f"known settings whose effect on memory is not worked out, so not counted: {', '.join(others)}")
