"""What is wrong with or worth knowing about a serving job. One rule, one function; each looks at a reading and tells at most one finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from everybyte.formats.serving.reading import Reading
from everybyte.formats.values import boolean, number

Rule = Callable[[Reading], None]


class Trap(NamedTuple):
    """A finding that stands in a table: a setting of one engine that is gone, has no effect or costs memory."""

    engine: str
    key: str
    id: str
    severity: str
    message: str
    remedy: str


def check(reading: Reading) -> None:
    """Applies every rule."""
    for rule in RULES:
        rule(reading)


RULES: tuple[Rule, ...] = ()

__all__ = ["RULES", "boolean", "check", "number"]
