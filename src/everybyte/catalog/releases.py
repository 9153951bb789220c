"""Releases of frameworks, engines and libraries: what each of them changed, as data in `data/releases`, and which of it a given release has.

A line of releases counts on a scale of its own: versions (`0.20.1`), days for what is dated by commit (`2024-12-26`), builds (`b5145`). All three are
tuples of whole numbers, so that one comparison serves them.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from os import listdir
from os.path import join
from typing import NamedTuple

from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.basics.record import Record
from everybyte.catalog.names import DATA, read_table

Number = tuple[int, ...]
"""A place on a line's scale."""

FOLDER = "releases"
LONGEST_NAME = 80
"""A longer name is shown by its beginning."""
_DIGITS = re.compile(r"\d+")
_STATED = re.compile(r"([A-Za-z][\w.-]*?)[ =>~]+v?(\d+(?:\.\d+)*)")


class Known(NamedTuple):
    """A release whose source was read, or whose date is known."""

    name: str
    number: Number
    note: str
    source: str


class Change(NamedTuple):
    """What is so from one release on, or until one, or between two."""

    name: str
    since: Number
    """The first release that has it; empty: all from the beginning."""
    until: Number
    """The first release that has it no more; empty: none."""
    variant: str
    """The part of the line that it is about, such as an engine of two in one package; empty: all of it."""
    value: str
    """The value of a default; empty for what is simply so."""
    meaning: str
    source: str

    def holds(self, number: Number, variant: str) -> bool:
        """Whether a release has it."""
        return self.variant in ("", variant) and number >= self.since and (not self.until or number < self.until)


class Line(NamedTuple):
    """The releases of one framework, engine or library."""

    name: str
    """As in a file's name and in `everybyte releases NAME`."""
    title: str
    """As people write it."""
    aliases: tuple[str, ...]
    """Other names, such as those of frameworks that run it."""
    known: tuple[Known, ...]
    """Oldest first."""
    changes: tuple[Change, ...]

    @property
    def newest(self) -> Known:
        """The last release that was read."""
        return self.known[-1]


class Event(NamedTuple):
    """What a release changed."""

    release: Number
    """Empty: what was so from the first release on."""
    change: Change
    ends: bool
    """The release is the first that has it no more."""

    @property
    def text(self) -> str:
        """The change in words."""
        value = f" = {self.change.value}" if self.change.value else ""
        of = f" ({self.change.variant})" if self.change.variant else ""
        return f"{'no more: ' if self.ends else ''}{self.change.meaning}{value}{of}"


class Release(Record, frozen=True):
    """One release, and what it has."""

    line: str
    number: Number
    variant: str = ""
    name: str = ""
    """As the job writes it, where that is not its number."""

    @property
    def title(self) -> str:
        """`torchtitan 2025-08-01`, as it stands in origins of settings."""
        return f"{releases(self.line).title} {self.name or self.text}"

    @property
    def text(self) -> str:
        """`0.19.0`, `b5145`, `2024-12-26`."""
        return written(self.number)

    def has(self, name: str) -> bool:
        """Whether the change is in this release; False for a name that its line does not have."""
        return name in _facts(self.line, self.number, self.variant)

    def value(self, name: str) -> str:
        """The value of a default. Raises KeyError where the line states none for this release."""
        return _facts(self.line, self.number, self.variant)[name]

    def find(self, name: str) -> str | None:
        """The same, None where the line states none for this release."""
        return _facts(self.line, self.number, self.variant).get(name)

    def whole(self, name: str) -> int:
        """The value of a default that is a whole number."""
        return int(self.value(name))

    def share(self, name: str) -> float:
        """The value of a default that is a decimal number."""
        return float(self.value(name))


def newest(line: str, variant: str = "") -> Release:
    """The last release of a line that was read."""
    return Release(line, releases(line).newest.number, variant)


def tagged(line: str, version: Number) -> Number | None:
    """The place on the scale of the newest known release that is named by this version or an earlier one; None for a version before all of them."""
    earlier = [(number_of(known.name), known.number) for known in releases(line).known if number_of(known.name) <= version]
    return max(earlier)[1] if earlier else None


def stated(text: str | None) -> dict[str, Number]:
    """`transformers 4.48.1, trl>=0.13` -> {"transformers": (4, 48, 1), "trl": (0, 13)}: of a range its lowest version."""
    return {name.casefold(): number_of(number) for name, number in _STATED.findall(text or "")}


def release_in(text: str | None, line: str) -> Release:
    """The release of a line that a text names, the newest one where it names none."""
    number = stated(text).get(line)
    return newest(line) if number is None else Release(line, number)


def written(number: Number) -> str:
    """`0.20.1` for a version, `2024-12-26` for a day, `b5145` for a build."""
    if len(number) == 1:
        return f"b{number[0]}"
    if number and number[0] >= _FIRST_YEAR:
        return "-".join([str(number[0]), *(f"{part:02}" for part in number[1:])])
    return ".".join(map(str, number))


_FIRST_YEAR = 2000
"""No version begins with so large a number."""


@cache
def releases(line: str) -> Line:
    """The table of one line. Raises BadInput for a name that has none, with the nearest."""
    if line not in lines():
        shown = line if len(line) <= LONGEST_NAME else f"{line[:LONGEST_NAME]}..."
        raise BadInput("releases", f"{shown!r} has no table of releases{did_you_mean(shown, lines())}; there are {', '.join(lines())}")
    header, *rows = read_table(join(FOLDER, f"{line}.csv"))
    known: list[Known] = []
    changes: list[Change] = []
    title, aliases = line, ""
    for row in rows:
        field = dict(zip(header, row, strict=True))
        since, until = number_of(field["since"]), number_of(field["until"])
        if field["kind"] == "title":
            title, aliases = field["name"], field["meaning"]
        elif field["kind"] == "release":
            known.append(Known(field["name"], since, field["meaning"], field["source"]))
        else:
            changes.append(Change(field["name"], since, until, field["variant"], field["value"], field["meaning"], field["source"]))
    return Line(line, title, tuple(aliases.split()), tuple(known), tuple(changes))


def line_named(name: str) -> Line:
    """The table of a line by its name, its title or an alias, without regard to case. Raises BadInput with the nearest names."""
    wanted = name.casefold()
    known = (releases(line) for line in lines())
    return next((line for line in known if wanted in (line.name, line.title.casefold(), *line.aliases)), None) or releases(wanted)


def events(line: Line, release: str | None = None) -> list[Event]:
    """What happened in each release, the newest first; of one release (`0.20` is 0.20.1 too) where it is named."""
    wanted = number_of(release or "")
    found = [Event(change.since, change, ends=False) for change in line.changes]
    found += [Event(change.until, change, ends=True) for change in line.changes if change.until and not _is_default(change)]
    found = [event for event in found if event.release[: len(wanted)] == wanted]
    return sorted(found, key=lambda event: event.release, reverse=True)


def _is_default(change: Change) -> bool:
    return bool(change.value)


@cache
def lines() -> tuple[str, ...]:
    """Names of all lines that have a table."""
    return tuple(sorted(name.removesuffix(".csv") for name in listdir(join(DATA, FOLDER)) if name.endswith(".csv")))


def number_of(text: str) -> Number:
    """`0.20.1`, `b5145`, `2024-12-26` as numbers."""
    return tuple(map(int, _DIGITS.findall(text)))


@lru_cache(maxsize=4096)
def _facts(line: str, number: Number, variant: str) -> dict[str, str]:
    """What a release has: names of changes, and of defaults with their value (of several rows that hold, the one that came last)."""
    holding = (change for change in releases(line).changes if change.holds(number, variant))
    return {change.name: change.value for change in sorted(holding, key=lambda change: change.since)}
