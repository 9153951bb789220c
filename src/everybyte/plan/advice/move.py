"""One thing that a person could change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from everybyte.basics.record import Record
from everybyte.plan.advice.facts import Facts

Settings = dict[str, Any]


class Move(Record, frozen=True, eq=False):
    """A kind of change. `tries` yields the values to try, the gentlest first: the first that fits counts, else the last."""

    name: str
    cost: int
    """Orders moves that fit: what costs least comes first."""
    price: str
    tries: Callable[[Facts], Iterator[Settings]]
    changes_objective: bool = False
    restarts: bool = False
    """What a person leaves open is chosen anew with it: a layout over more GPUs, the example of another method."""
    excludes: tuple[str, ...] = ()
    """Names of moves that make no sense beside it."""
