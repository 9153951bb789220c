"""Starting points: what each framework's own example sets, and how it shards, as data with source and version (catalog/data/starting_points.json)."""

from __future__ import annotations

from functools import cache
from os.path import join
from typing import Any

import msgspec

from everybyte.catalog.names import DATA


class Point(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of an official example."""

    frameworks: tuple[str, ...]
    when: dict[str, bool]
    """Facts of the job that it is for: adapter, image."""
    name: str
    """How an answer calls it."""
    source: str
    version: str
    set: dict[str, Any]
    """Key path -> value."""

    @property
    def origin(self) -> str:
        """What the answer says of a setting that was taken from it."""
        return f"default of everybyte: {self.name} ({self.version})"


class Shardings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a framework's examples lay a model over several GPUs, the fastest first."""

    frameworks: tuple[str, ...]
    shardings: tuple[str, ...]
    source: str


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    points: tuple[Point, ...]
    layouts: tuple[Shardings, ...]


@cache
def _file() -> _File:
    with open(join(DATA, "starting_points.json"), "rb") as file:
        return msgspec.json.decode(file.read(), type=_File)


def all_points() -> tuple[Point, ...]:
    """Every starting point."""
    return _file().points


def all_layouts() -> tuple[Shardings, ...]:
    """How each framework's examples shard."""
    return _file().layouts


def points_of(framework: str, facts: dict[str, bool]) -> Point | None:
    """The first starting point of a framework whose conditions hold; None where there is none."""
    return next((p for p in all_points() if framework in p.frameworks and all(facts.get(k) == v for k, v in p.when.items())), None)


def shardings_of(framework: str) -> tuple[str, ...]:
    """The shardings of a framework's examples, the fastest first; empty where its own default stands."""
    return next((row.shardings for row in all_layouts() if framework in row.frameworks), ())
