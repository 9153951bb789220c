"""Keys of `extra` that a framework has and the account does not read: as data, with what is known of their effect on memory."""

from __future__ import annotations

from functools import cache
from os import listdir
from os.path import join
from typing import NamedTuple

from everybyte.catalog.names import DATA, read_table

FOLDER = "extra_keys"
NO_EFFECT, ELSEWHERE, NOT_COUNTED, INCLUDE = "none", "elsewhere", "not counted", "include"


class KnownKey(NamedTuple):
    """What is known of a key that nothing reads."""

    effect: str
    """`none`: it changes no size; `elsewhere`: another key of the job says it; `not counted`: it may change sizes, and that is not worked out."""
    reason: str
    """Why it changes nothing, or which key of the job says it."""


class KnownKeys(NamedTuple):
    """The keys of one framework, those of the frameworks that it builds on among them."""

    keys: dict[str, KnownKey]
    beginnings: dict[str, KnownKey]
    """Of families of keys, such as `NVTE_`."""

    def find(self, key: str) -> KnownKey | None:
        """What is known of a key in its canonical form; None for one that the framework does not have."""
        found = self.keys.get(key)
        return found or next((known for beginning, known in self.beginnings.items() if key.startswith(beginning)), None)


@cache
def tables_of_keys() -> frozenset[str]:
    """Names that have a table."""
    return frozenset(name.removesuffix(".csv") for name in listdir(join(DATA, FOLDER)) if name.endswith(".csv"))


@cache
def known_keys(framework: str) -> KnownKeys:
    """The table of a framework. A key counts as its own table has it, unless a table that it includes knows that it has no effect."""
    found = KnownKeys({}, {})
    included = []
    for key, effect, reason in read_table(join(FOLDER, f"{framework}.csv"))[1:]:
        if effect == INCLUDE:
            included.append(key)
        elif key.endswith("*"):
            found.beginnings[key[:-1]] = KnownKey(effect, reason)
        else:
            found.keys[key] = KnownKey(effect, reason)
    for other in included:
        more = known_keys(other)
        for key, known in more.keys.items():
            if key not in found.keys or known.effect == NO_EFFECT:
                found.keys[key] = known
        for key, known in more.beginnings.items():
            found.beginnings.setdefault(key, known)
    return found
