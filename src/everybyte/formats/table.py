"""Tables that map the keys of a framework onto a job, in both directions. A table is a CSV file beside its reader: `key,job,as`.

`job` is a job key; `-` for a key without effect on memory (`*` in such a key stands for any text); `*` for a key that the reader's code takes;
`train.extra.NAME` for a setting that keeps its own name. `as` is int, float, bool, text, names, any, or a table of `data/values.csv`.
"""

from __future__ import annotations

import csv
from functools import cache
from os.path import dirname, join
from typing import Any, NamedTuple

from everybyte.basics.errors import BadInput
from everybyte.formats.bag import Bag
from everybyte.formats.draft import JobDraft
from everybyte.formats.place import Given
from everybyte.formats.values import boolean, is_placeholder, names, number, whole

HERE = dirname(__file__)


class Row(NamedTuple):
    """One key of a framework."""

    key: str
    job: str
    kind: str


class Table(NamedTuple):
    """The keys of a framework."""

    rows: tuple[Row, ...]
    quiet: tuple[str, ...]
    """Beginnings and ends of keys without effect, such as `wandb_*`."""
    kept: tuple[Row, ...]
    """Beginnings of keys that `train.extra` keeps by their own names, such as `qat*`."""
    known: frozenset[str]
    """Every key without a `*`."""

    def read(self, bag: Bag, draft: JobDraft) -> None:
        """States what the bag says; a value that cannot be read becomes a finding."""
        for row in self.rows:
            if row.job in ("-", "*"):
                continue
            given = bag.take(row.key)
            if given is not None:
                put(draft, row, given)
        for row in self.kept:
            for key in [key for key in bag.unread_keys() if _matches(row.key, key)]:
                if (given := bag.take(key)) is not None:
                    draft.state(f"{row.job.partition('.')[0]}.extra.{key}", given.value, given.place)
        bag.ignore(row.key for row in self.rows if row.job == "-")
        bag.ignore(key for key in list(bag) if any(_matches(pattern, key) for pattern in self.quiet))


@cache
def table(*files: str) -> Table:
    """The table of files such as `training/axolotl.csv`, those of the first file before those of the next."""
    rows: dict[str, Row] = {}
    for file in files:
        for row in _lines(file):
            rows.setdefault(row[0], Row(row[0], row[1], row[2]))
    plain = tuple(row for row in rows.values() if "*" not in row.key)
    quiet = tuple(row.key for row in rows.values() if "*" in row.key and row.job == "-")
    kept = tuple(row for row in rows.values() if "*" in row.key and ".extra." in row.job)
    return Table(plain, quiet, kept, frozenset(row.key for row in plain))


@cache
def value_tables() -> dict[str, dict[str, str]]:
    """Table of `data/values.csv` -> given word in lower case -> job word, or `key=value; key=value`."""
    tables: dict[str, dict[str, str]] = {}
    for name, given, job in _lines("data/values.csv"):
        tables.setdefault(name, {})[given] = job
    return tables


def put(draft: JobDraft, row: Row, given: Given) -> None:
    """States the value of a row, or reports that it is none."""
    if given.value in ("auto", "", "null", "None") or is_placeholder(given.value):
        if given.value not in ("auto", "", "null", "None"):
            draft.miss(row.job, f"{row.key} is {given.value!r:.60} at {given.place}, which waits to be filled in")
        return
    settings = translate(row, given.value)
    if settings is None:
        kind = row.kind if row.kind not in value_tables() else f"one of {', '.join(value_tables()[row.kind])}"
        draft.find("impossible-value", "error", given.place, f"{row.key} is {given.value!r:.60}, which is not {_KINDS.get(row.kind, kind)}")
        return
    for key, value in settings.items():
        draft.state(key, value, given.place)


def translate(row: Row, value: Any) -> dict[str, Any] | None:
    """The job's settings of a key's value; None if the value cannot be read."""
    if row.kind == "optimizer":
        return optimizer_settings(str(value))
    if row.kind in _CONVERT:
        found = _CONVERT[row.kind](value)
        return None if found is None else {row.job: found}
    words = value_tables()[row.kind]
    word = words.get(str(value).strip().casefold())
    return None if word is None else settings_of(row.job, word)


def optimizer_settings(name: str) -> dict[str, Any]:
    """The settings of an optimizer by a name of transformers, torch, bitsandbytes or torchao; a name that nobody knows stays as it is."""
    from everybyte.rules.optimizers.plan import named

    try:
        found = named(name)
    except BadInput:
        return {"train.optimizer.name": name}
    said = {"name": found.key, "impl": found.impl, "paged": found.paged or None, "in_backward": found.in_backward or None}
    return {f"train.optimizer.{key}": value for key, value in said.items() if value is not None}


def settings_of(job: str, word: str) -> dict[str, Any]:
    """`name=adamw; impl=fused` below `train.optimizer`; a single word is the value of the job key itself; `-` says nothing."""
    if word == "-":
        return {}
    if "=" not in word:
        return {job: typed(word)}
    pairs = (part.strip().partition("=") for part in word.split(";"))
    return {key if "." in key else f"{job}.{key}": typed(value) for key, _, value in pairs}


def typed(word: str) -> Any:
    """The value of a word in a table: `true`, `3`, text."""
    if word in ("true", "false"):
        return word == "true"
    found = number(word)
    return word if found is None else found


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None


def _as_is(value: Any) -> Any:
    found = number(value)
    if found is not None:
        return found
    switch = boolean(value) if isinstance(value, str) and value.casefold() in ("true", "false") else None
    return value if switch is None else switch


_CONVERT = {"model": _text, "int": whole, "float": number, "bool": boolean, "text": _text, "names": names, "any": _as_is}
_KINDS = {
    "model": "a name",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "text": "text",
    "names": "a list of names",
    "any": "a value",
}


def _matches(pattern: str, key: str) -> bool:
    head, _, tail = pattern.partition("*")
    return key.startswith(head) and key.endswith(tail)


def _lines(file: str) -> list[list[str]]:
    """The lines of a CSV file below this folder, without its header and comments."""
    with open(join(HERE, file), encoding="utf-8", newline="") as lines:
        return [row for row in list(csv.reader(lines))[1:] if row and not row[0].startswith("#")]
