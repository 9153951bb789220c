"""The flags of an engine as data: how they are spelt, what their values are, and which job keys they set."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from os.path import dirname, join
from typing import Any, NamedTuple

from everybyte.formats.bag import Bag
from everybyte.formats.command import Word
from everybyte.formats.draft import JobDraft
from everybyte.formats.finding import Finding
from everybyte.formats.flags import Flags, Spelling, parse
from everybyte.formats.place import Given
from everybyte.formats.table import settings_of
from everybyte.formats.values import boolean, names, number, whole

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmg])(i?)b?", re.IGNORECASE)
_POWER = {"k": 1, "m": 2, "g": 3}


class Flag(NamedTuple):
    """One flag."""

    name: str
    """Its first name, with underscores and without dashes."""
    aliases: tuple[str, ...]
    kind: str
    """`switch`, `not` (a switch that turns something off), `int`, `size` (32k is 32,000, 32K is 32,768), `float`, `text`, `list`, `ints`, `floats`, `json`,
    `kv` (a cache format), `layers` (-1 and `all` are all), `any`, or `words:TABLE` of words.csv."""
    job: str
    """A job key, `-` (no effect on memory), `*` (read by the engine's module), `extra` or `extra:NAME` (kept by its own name), `fork:NAME` (ik_llama.cpp)."""


class FlagTable(NamedTuple):
    """All flags of an engine."""

    flags: Mapping[str, Flag]
    spelling: Spelling
    names: Mapping[str, str]
    """Every name of a flag -> its first."""

    def bag_of(self, words: Sequence[Word], draft: JobDraft) -> tuple[Bag, tuple[Word, ...]]:
        """The flags of a command under their first names, and the words that belong to none."""
        parsed = parse([_readable(word) for word in words], self.spelling)
        draft.findings += self._that_matter(parsed)
        return self.settled({key: given for key in parsed.bag if (given := parsed.bag.peek(key)) is not None} | _unknown(parsed.bag), draft), parsed.positional

    def _that_matter(self, parsed: Flags) -> list[Finding]:
        """What was odd about flags that have an effect on memory."""
        quiet = {str(parsed.bag.place(key)) for key in parsed.bag if (flag := self.flags.get(key)) is not None and flag.job == "-"}
        return [finding for finding in parsed.findings if finding.place not in quiet]

    def settled(self, given: Mapping[str, Given], draft: JobDraft) -> Bag:
        """Keys under their first names; `--no-x` is x without, `--limit.video 0` and JSON are one mapping."""
        found: dict[str, Given] = {}
        for key, stated in given.items():
            name, value = self._positive(key, stated)
            head, point, rest = name.partition(".")
            head = self.names.get(head, head)
            if point and name not in self.flags and head in self.flags and self.flags[head].kind == "json":
                before = found.get(head)
                inside = before.value if before is not None and isinstance(before.value, dict) else {}
                found[head] = Given({**inside, **_nested(rest, _plain(value.value))}, value.place)
            elif name in self.flags and self.flags[name].kind == "json":
                found[name] = _merged(found.get(name), self._json(value, name, draft))
            else:
                found[name] = value
        return Bag(found)

    def _positive(self, key: str, given: Given) -> tuple[str, Given]:
        """A flag under its first name; `no_x` is x without."""
        name = self.names.get(key, key)
        if name in self.flags or not key.startswith("no_") or not self._is_switch(key[3:]):
            return name, given
        return self.names.get(key[3:], key[3:]), Given(not _truth(given.value), given.place)

    def _is_switch(self, name: str) -> bool:
        flag = self.flags.get(self.names.get(name, name))
        return flag is not None and flag.kind in ("switch", "not")

    def _json(self, given: Given, name: str, draft: JobDraft) -> Given:
        """The value of a flag that takes JSON; older releases take `image=4,video=0`."""
        if not isinstance(given.value, str):
            return given
        try:
            return Given(json.loads(given.value), given.place)
        except ValueError:
            pairs = re.findall(r"(\w+)=(\w+)", given.value)
            if pairs:
                return Given({key: _plain(value) for key, value in pairs}, given.place)
        if re.search(r"<[\w.-]+>", given.value):
            draft.find("unknown-value", "warning", given.place, f"the value of {given.place.flag or name} cannot be known: it waits to be filled in")
            return Given(None, given.place)
        if given.value.strip().startswith(("{", "[")):
            draft.find(
                "broken-json", "error", given.place, f"{given.place.flag or name} is not valid JSON: {given.value[:80]!r}", "put single quotes around it"
            )
            return Given(None, given.place)
        return given

    def read(self, bag: Bag, draft: JobDraft) -> None:
        """States what the bag says for every flag that needs no code."""
        for flag in self.flags.values():
            if flag.job == "*":
                continue
            given = bag.take(flag.name)
            if given is not None and flag.job != "-":
                _state(draft, flag, given)
        bag.ignore(key for key in list(bag) if any(key.startswith(name[:-1]) for name in self.flags if name.endswith(".*")))


def _readable(word: Word) -> Word:
    """A path of which only the beginning is unknown still says which file it is."""
    return word._replace(unknown="") if word.unknown and re.fullmatch(r"[^/]*[$`<][^/]*(/[^$`<]+)+", word.text) else word


def _unknown(bag: Bag) -> dict[str, Given]:
    """Keys whose value is not known: they count as said, without a value."""
    return {key: Given(None, place) for key in bag if bag.peek(key) is None and (place := bag.place(key)) is not None}


@cache
def flag_table(file: str) -> FlagTable:
    """The table of an engine, such as `vllm.csv`."""
    flags = {}
    for name, aliases, kind, job in _lines(file):
        flags[name] = Flag(name, tuple(aliases.split()), kind, job)
    if "help" not in flags:
        flags["help"] = Flag("help", ("h",) if all("h" not in flag.aliases for flag in flags.values()) else (), "switch", "-")
    short = {alias: flag.name for flag in flags.values() for alias in flag.aliases}
    switches = frozenset(name for flag in flags.values() if flag.kind in ("switch", "not") for name in (flag.name, *flag.aliases))
    lists = frozenset(flag.name for flag in flags.values() if flag.kind in ("list", "ints", "pairs"))
    known = frozenset(flags) | frozenset(alias for alias in short if len(alias) > 3)
    switches |= frozenset(f"no_{name}" for name in switches)
    return FlagTable(flags, Spelling(switches, lists, short, known), {**{name: name for name in flags}, **short})


@cache
def words() -> dict[str, dict[str, str]]:
    """Table -> given word in lower case -> job word."""
    tables: dict[str, dict[str, str]] = {}
    for table, given, job in _lines("words.csv"):
        tables.setdefault(table, {})[given] = job
    return tables


def _lines(file: str) -> list[list[str]]:
    with open(join(dirname(__file__), file), encoding="utf-8", newline="") as lines:
        return list(csv.reader(lines))[1:]


def _state(draft: JobDraft, flag: Flag, given: Given) -> None:
    """States the value of a flag, or reports that it is none."""
    if flag.kind.startswith("words:"):
        word = words()[flag.kind[6:]].get(str(given.value).strip().casefold())
        settings = None if word is None else settings_of(flag.job, word)
    else:
        value = convert(flag.kind, given.value)
        settings = None if value is None else {_key(flag): value}
    if settings is None and isinstance(given.value, str | list) and re.search(r"\$[\w({]", str(given.value)):
        message = f"the value of {given.place.flag or flag.name} cannot be known: {given.value!r:.80} is worked out by the script"
        draft.find("unknown-value", "warning", given.place, message)
        return
    if settings is None:
        message = f"{given.place.flag or flag.name} is {given.value!r:.60}, which is not {_SAID.get(flag.kind, 'a word that the engine has')}"
        draft.find("impossible-value", "error", given.place, message)
        return
    for key, value in settings.items():
        draft.state(key, value, given.place)


def _key(flag: Flag) -> str:
    head, _, name = flag.job.partition(":")
    return f"serve.extra.{name or flag.name}" if head in ("extra", "fork") else flag.job


def convert(kind: str, value: Any) -> Any:
    """The value of a flag as a job holds it; None if it is none."""
    return _CONVERT[kind](value)


def size(value: Any) -> int | None:
    """A count of tokens: `32k` is 32,000, `32K` is 32,768."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return whole(value)
    binary = match[2].isupper() or bool(match[3])
    return int(float(match[1]) * (1024 if binary else 1000) ** _POWER[match[2].casefold()])


def kv_word(value: Any) -> str | None:
    """The format of a cache: engines' names for common ones become the job's, others keep theirs."""
    if not isinstance(value, str) or not value.strip():
        return None
    word = value.strip().casefold()
    return words()["kv"].get(word, word)


def _truth(value: Any) -> bool:
    found = boolean(value)
    return True if found is None else found


def _negated(value: Any) -> bool | None:
    found = boolean(value)
    return None if found is None else not found


def _numbers(value: Any) -> list[Any] | None:
    parts = value if isinstance(value, list) else [value]
    found = [number(part.strip()) if isinstance(part, str) else number(part) for item in parts for part in _pieces(item)]
    return None if not found or any(each is None for each in found) else found


def _pieces(item: Any) -> list[Any]:
    return [part for part in re.split(r"[,\s/\[\]]+", item) if part] if isinstance(item, str) else [item]


def _layers(value: Any) -> int | None:
    return -1 if str(value).casefold() in ("all", "max") else whole(value)


def _list(value: Any) -> list[str] | None:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)] if isinstance(value, str) else None


def _plain(value: Any) -> Any:
    """A value of a word: a number, a truth, JSON, or the text itself."""
    if not isinstance(value, str):
        return value
    found = number(value)
    if found is not None:
        return found
    if value.casefold() in ("true", "false"):
        return value.casefold() == "true"
    try:
        return json.loads(value) if value.startswith(("{", "[")) else value
    except ValueError:
        return value


def _nested(path: str, value: Any) -> dict[str, Any]:
    head, point, rest = path.partition(".")
    return {head: _nested(rest, value) if point else value}


def _merged(before: Given | None, given: Given) -> Given:
    if before is None or not isinstance(before.value, dict) or not isinstance(given.value, dict):
        return given
    return Given({**before.value, **given.value}, given.place)


_CONVERT: dict[str, Any] = {
    "switch": boolean,
    "not": _negated,
    "int": whole,
    "size": size,
    "float": number,
    "text": lambda value: None if isinstance(value, dict) else str(value),
    "list": _list,
    "ints": _numbers,
    "floats": _numbers,
    "pairs": names,
    "json": _plain,
    "any": _plain,
    "kv": kv_word,
    "layers": _layers,
    "optional": _plain,
}
_SAID = {
    "switch": "true or false",
    "not": "true or false",
    "int": "a whole number",
    "size": "a number of tokens",
    "float": "a number",
    "ints": "a list of numbers",
    "floats": "a list of numbers",
    "kv": "a cache format",
    "layers": "a number of layers",
}
