"""The words of a command as a bag of keys, as argparse and its kin read them.

`--key value`, `--key=value`, `--key a b c`, `--switch`, `--no-switch`, `-2` as a value, a unique prefix of a known flag, the last of two equal flags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from everybyte.formats.bag import Bag, normal
from everybyte.formats.command import Word
from everybyte.formats.finding import Finding
from everybyte.formats.place import Given, Place

_NUMBER = re.compile(r"-\d+(\.\d+)?([eE][-+]?\d+)?|-inf")
PATH_END = re.compile(r"/[^/$`*{}()]+$")
"""The end of a path whose beginning is not known: `$HOME/models/Qwen2.5-7B` still names the model."""
_FLAG = re.compile(r"--?[A-Za-z]")


class Spelling(NamedTuple):
    """What a program's flags look like."""

    switches: frozenset[str] = frozenset()
    """Flags without a value, normal names: the word behind them is an argument of its own."""
    lists: frozenset[str] = frozenset()
    """Flags that take all words up to the next flag, or come several times."""
    short: Mapping[str, str] = {}
    """`-tp` -> `tensor_parallel_size`: further names, without dashes."""
    known: frozenset[str] = frozenset()
    """All flags, for prefixes; empty: prefixes are not looked up."""
    optional: frozenset[str] = frozenset()
    """Flags whose value may be left out: `--bf16` and `--bf16 True`. All that are not switches take a value if one follows."""


class Flags(NamedTuple):
    """The flags of a command, the words that belong to none, and what was odd about them."""

    bag: Bag
    positional: tuple[Word, ...]
    findings: tuple[Finding, ...]


def is_flag(text: str) -> bool:
    """Whether a word is a flag rather than a value: `-2` and `-` are values."""
    return bool(_FLAG.match(text)) and not _NUMBER.fullmatch(text) and not text.startswith("---")


def parse(words: Sequence[Word], spelling: Spelling = Spelling()) -> Flags:  # noqa: B008  # an immutable value
    """Flags and positional words of a command line without its program. A word whose value is unknown is the value None with its reason as the place's."""
    given: dict[str, Given] = {}
    positional: list[Word] = []
    findings: list[Finding] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not is_flag(word.text):
            positional.append(word)
            continue
        written, equals, inline = word.text.partition("=")
        name = _name(written, spelling)
        values: list[Word] = [word._replace(text=inline)] if equals else []
        if not equals and name not in spelling.switches:
            most = len(words) if name in spelling.lists else 1
            while index < len(words) and len(values) < most and not is_flag(words[index].text):
                values.append(words[index])
                index += 1
            if name not in spelling.lists and name not in spelling.known:
                while index < len(words) and not is_flag(words[index].text):  # an unknown flag may take several
                    values.append(words[index])
                    index += 1
        _add(given, findings, name, values, Place(word.place.source, word.place.line, written), in_list=name in spelling.lists)
    return Flags(Bag(given), tuple(positional), tuple(findings))


def _name(written: str, spelling: Spelling) -> str:
    name = normal(written)
    name = spelling.short.get(name, name)
    if not spelling.known or name in spelling.known:
        return name
    longer = {known for known in spelling.known if known.startswith(name)} if written.startswith("--") else set()
    return longer.pop() if len(longer) == 1 else name


def _add(given: dict[str, Given], findings: list[Finding], name: str, values: list[Word], place: Place, *, in_list: bool) -> None:
    if any(word.unknown for word in values) and not (len(values) == 1 and PATH_END.search(values[0].text)):
        why = next(word.unknown for word in values if word.unknown)
        findings.append(Finding(id="unknown-value", severity="warning", place=str(place), message=f"the value of {place.flag} cannot be known: {why}"))
        given[name] = Given(None, place)
        return
    value: object = True if not values else values[0].text if len(values) == 1 and not in_list else [word.text for word in values]
    before = given.get(name)
    if before is not None and in_list and isinstance(before.value, list) and isinstance(value, list):
        value = before.value + value
    elif before is not None and before.value != value:
        message = f"{place.flag} is given twice, as {before.value} and as {value}; the last one holds"
        findings.append(Finding(id="flag-twice", severity="warning", place=str(place), message=message))
    given[name] = Given(value, place)


def text_of(words: Iterable[Word]) -> str:
    """The words as one line, for messages."""
    return " ".join(word.text for word in words)
