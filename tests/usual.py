"""Which cases of a full matrix are tried in `make test`; the others are marked `long`.

The rule: every value of every axis is met by every value of every other axis at least once, in as few cases as a greedy choice finds. Most faults hang on one
setting or on two together; those that hang on three are left to `make test-long`, which has the whole matrix. A second oracle of the same numbers, slower than
the first, meets every value once (`together=1`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import combinations
from typing import Any

import pytest

Case = tuple[Hashable, ...]
Part = tuple[tuple[int, Hashable], ...]


def usual(cases: Sequence[Case], together: int = 2) -> list[Case]:
    """A few of the cases in which all values are met that are met `together` in any of them. The same few each time."""
    wanted = set().union(*(parts(case, together) for case in cases))
    left, chosen = list(cases), []
    while wanted:
        best = max(left, key=lambda case: len(wanted & parts(case, together)))
        left.remove(best)
        chosen.append(best)
        wanted -= parts(best, together)
    return chosen


def parts(case: Case, together: int) -> set[Part]:
    """The values of a case with their axes, so many at a time."""
    return set(combinations(enumerate(case), together))


def matrix(cases: Sequence[Case], together: int = 2, called: Callable[..., str] | None = None) -> list[Any]:
    """All cases as parameters of a test; those that are not usual are marked long. `called` names a case after its values."""
    short = set(usual(cases, together))
    name = called or (lambda *values: "-".join(map(str, values)))
    return [pytest.param(*case, id=name(*case), marks=[] if case in short else [pytest.mark.long]) for case in cases]
