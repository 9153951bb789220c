"""Flags that people know from elsewhere: rewritten to ours where they mean the same, answered by their meaning where they do not."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from everybyte.basics.errors import nearest
from everybyte.catalog.names import read_table
from everybyte.job.flags import TABLES, Flag

SWITCH_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
"""What people write behind a switch that needs no value."""
RANKED = ("--lora", "--qlora", "--dora")
"""Flags whose number may be left out, also where another word follows."""
UNSAID = "unsaid"
"""What stands behind such a flag then."""


class Alias(NamedTuple):
    """What a foreign flag stands for; `{}` is its value."""

    means: str
    known_from: str


@cache
def aliases(purpose: str) -> dict[str, Alias]:
    """Foreign flag -> what it means in a command (`train`, `serve`)."""
    return {alias: Alias(means, known_from) for where, alias, means, known_from in read_table("flag_aliases.csv")[1:] if where in (purpose, "both")}


@cache
def without_memory() -> dict[str, tuple[str, str]]:
    """Flags that change no memory: what they are about, and what to say instead where there is something."""
    return {flag: (about, instead) for flag, about, instead in read_table("flags_without_memory.csv")[1:]}


def rewritten(args: Sequence[str], purpose: str) -> list[str]:
    """The arguments with foreign flags in our own words."""
    return list(_rewritten(list(args), purpose))


def _rewritten(args: list[str], purpose: str) -> Iterator[str]:
    own = {flag.name for flag in TABLES[purpose]}
    while args:
        word = args.pop(0)
        if word == "--":
            yield from (word, *args)
            return
        name, equals, value = word.partition("=")
        name = _hyphened(name)
        alias = None if name in own else aliases(purpose).get(name)
        if alias is not None:
            yield from _meant(name, alias.means, [value, *args] if equals else args, purpose)
            if ("{}" in alias.means and not equals and args) or ("{}" not in alias.means and not equals and args and args[0].casefold() in SWITCH_WORDS):
                args.pop(0)
        elif name in RANKED and name in own and not equals and not (args and args[0].isdigit()):
            yield f"{name}={UNSAID}"
        else:
            yield f"{name}{equals}{value}" if word.startswith("--") else word


def _hyphened(name: str) -> str:
    """`--max_model_len` -> `--max-model-len`."""
    return name.replace("_", "-") if name.startswith("--") else name


def _meant(name: str, means: str, values: list[str], purpose: str) -> Iterator[str]:
    """What an alias stands for, with its value put in. A switch that is off stands for its opposite, or for nothing."""
    if "{}" not in means:
        is_off = bool(values) and SWITCH_WORDS.get(values[0].casefold()) is False
        opposite = aliases(purpose).get(f"--no-{name.removeprefix('--')}")
        yield from (opposite.means if opposite else "").split() if is_off else means.split()
        return
    flag, _, form = means.partition(" ")
    if not values or (values[0].startswith("-") and not re.fullmatch(r"-[0-9.]+", values[0])):
        yield flag  # click says that its value is missing
        return
    yield from (flag, form.replace("{}", values[0]))


def unknown_flag(name: str, purpose: str) -> str:
    """What to say of a flag that nobody knows: by its meaning, not by its letters."""
    name = _hyphened(name)
    if name in without_memory():
        about, instead = without_memory()[name]
        return f"{name} is about {about}: " + (instead or "it changes no memory, leave it out")
    other = "serve" if purpose == "train" else "train"
    there = next((flag for flag in TABLES[other] if flag.name == name), None)
    if there is not None:
        return f"{name} is a flag of `everybyte {other}`{_like(there.help, purpose)}"
    if name in aliases(other):
        return f"{name} is {aliases(other)[name].known_from}'s for `everybyte {other}`; here it has no meaning"
    found = _by_meaning(name, purpose)
    hint = f": did you mean {found.name} ({found.help.rstrip('.')})?" if found is not None else ""
    return f"there is no flag {name}{hint or '.'} `everybyte {purpose} --help` lists all; --set KEY=VALUE reaches every key of a job"


def _like(text: str, purpose: str) -> str:
    """The flag of this command that has the same meaning, where there is one."""
    found = next((flag.name for flag in TABLES[purpose] if flag.help == text), None)
    return f"; here it is {found}" if found else ""


def _by_meaning(name: str, purpose: str) -> Flag | None:
    """The flag that shares most words with a name, in its own name, its key, its help and the aliases that stand for it; spelling decides only among
    flags of the same name."""
    words = set(_words(name))
    scored = [(len(words & _vocabulary(flag, purpose)) / len(words), flag) for flag in TABLES[purpose]] if words else []
    best = max(scored, key=lambda pair: pair[0], default=None)
    if best is not None and best[0] > 0:
        return best[1]
    near = nearest(name, [flag.name for flag in TABLES[purpose]], 1)
    close = next((flag for flag in TABLES[purpose] if near and flag.name == near[0]), None)
    return close if close is not None and _is_slip(name, close.name) else None


def _is_slip(name: str, other: str) -> bool:
    """Whether a name is another one with a letter or two wrong."""
    return difflib.SequenceMatcher(None, name, other).ratio() >= 0.8


STOP = frozenset(
    ("a", "the", "of", "and", "or", "per", "size", "num", "max", "number", "use", "enable", "is", "in", "as", "with", "that", "to", "model", "set")
)


@cache
def _vocabulary(flag: Flag, purpose: str) -> frozenset[str]:
    said = [flag.name, flag.path.rpartition(".")[2], flag.help, *(alias for alias, row in aliases(purpose).items() if row.means.split(" ")[:1] == [flag.name])]
    return frozenset(word for text in said for word in _words(text))


def _words(text: str) -> list[str]:
    return [word.removesuffix("s") for word in re.findall(r"[a-z0-9]+", text.casefold()) if word not in STOP and len(word) > 1]
