"""What is said of a job on a device: one word, and the share of runs that would fit."""

from __future__ import annotations

from math import erf, log, sqrt
from typing import Literal

Verdict = Literal["fits", "close", "does not fit"]

Ends = tuple[float, float]
"""The ends of a 90 % interval with the point figure inside it: one run of twenty lies below it, one above."""

DEVIATIONS = 1.6449
"""Standard deviations between the middle of a normal distribution and the end of its 90 % interval."""


def verdict_of(*, fits: bool, ends: Ends | None, capacity: int) -> Verdict:
    """`close` if the capacity lies inside the interval of what is needed, else what the point figure says."""
    if ends is not None and ends[0] <= capacity < ends[1]:
        return "close"
    return "fits" if fits else "does not fit"


def share_that_fits(needed: int, ends: Ends | None, capacity: int) -> float:
    """The share of runs that need no more than the capacity, from 0 to 1.

    Half of the runs need less than `needed`. On either side of it the logarithm of what is needed is taken as normal, as wide as that end of the interval
    says. Without an interval the point figure decides.
    """
    end = None if ends is None else ends[1] if capacity >= needed else ends[0]
    if end is None or min(end, needed, capacity) <= 0 or end == needed:
        return 1.0 if capacity >= needed else 0.0
    distance = log(capacity / needed) / abs(log(end / needed)) * DEVIATIONS
    return round((1 + erf(distance / sqrt(2))) / 2, 3)
