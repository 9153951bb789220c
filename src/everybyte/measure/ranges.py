"""Intervals in which the measured value is expected 9 times of 10, learnt from measured runs."""

from __future__ import annotations

from everybyte.job import Job


def ranges(job: Job, figures: dict[str, int]) -> dict[str, tuple[int, int]]:
    """The interval of each figure."""
    return {}
