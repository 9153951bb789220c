"""Which cases of a full matrix are tried in `make test`; the others are marked `long`.

The rule: every value of every axis is met by every value of every other axis at least once, in as few cases as a greedy choice finds. Most faults hang on one
setting or on two together; those that hang on three are left to `make test-long`, which has the whole matrix.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import Any

import pytest

Case = tuple[Hashable, ...]
Pair = tuple[tuple[int, Hashable], tuple[int, Hashable]]


def usual(cases: Sequence[Case]) -> list[Case]:
    """A few of the cases in which every pair of values is met that is met in all of them. The same few each time."""
    wanted = {pair for case in cases for pair in pairs(case)}
    left, chosen = list(cases), []
    while wanted:
        best = max(left, key=lambda case: len(wanted & pairs(case)))
        left.remove(best)
        chosen.append(best)
        wanted -= pairs(best)
    return chosen


def pairs(case: Case) -> set[Pair]:
    """The values that a case has together, by two."""
    return set(combinations(enumerate(case), 2))


def matrix(cases: Sequence[Case], ids: Sequence[str] | None = None) -> list[Any]:
    """All cases as parameters of a test; those that are not usual are marked long."""
    short = set(usual(cases))
    names = ids or ["-".join(map(str, case)) for case in cases]
    return [pytest.param(*case, id=name, marks=[] if case in short else [pytest.mark.long]) for case, name in zip(cases, names, strict=True)]
