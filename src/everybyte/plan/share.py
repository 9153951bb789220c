"""Between which values the share of the device that an engine may use works: too little leaves no room for the cache, too much none for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.basics.units import show_bytes
from everybyte.job import Job
from everybyte.ledger.answer import Answer
from everybyte.plan.fit import why_not
from everybyte.plan.keys import SHARE, with_value

PARTS = 1000
"""Shares are tried in thousandths."""
STEP = 10
"""Thousandths between two values of the first look."""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A run of values that all work, as far as they were tried, and what the cache holds at its ends."""

    low: float
    high: float
    tokens: tuple[int, int] | None = None


class ShareResult(msgspec.Struct, frozen=True, kw_only=True):
    """All intervals, low to high; none where no value works. `below` and `above`: why the values next to them do not, or why none does."""

    key: str
    intervals: tuple[Interval, ...]
    below: str | None
    above: str | None
    tried: int


class _Trial(NamedTuple):
    works: bool
    why: str
    tokens: int | None


def feasible(job: Job, estimate: Callable[[Job], Answer] | None = None) -> ShareResult:
    """The intervals of `serve.memory_fraction` in which the job fits. Nothing is assumed about their number: every hundredth is tried, and borders between
    two of them to the thousandth. Raises BadInput without a GPU, and where every value is refused."""
    if job.hardware is None or job.hardware.gpu is None:
        raise BadInput("hardware.gpu", "is needed to say what fits; name a GPU")
    if estimate is None:
        from everybyte.estimator import estimate as answer_to

        estimate = answer_to
    trials = _Trials(job, estimate)
    marks = range(STEP, PARTS + 1, STEP)
    found: list[tuple[int, int]] = []
    for mark in marks:
        if trials(mark).works:
            low = trials.border(mark - STEP, mark) if mark > STEP and not trials(mark - STEP).works else mark
            high = trials.border(mark + STEP, mark) if mark < PARTS and not trials(mark + STEP).works else mark
            if found and found[-1][1] == mark - STEP:
                found[-1] = (found[-1][0], high)
            else:
                found.append((low, high))
    if trials.refused is not None and len(trials.done) == trials.refusals:
        raise trials.refused
    intervals = tuple(Interval(low=low / PARTS, high=high / PARTS, tokens=trials.tokens(low, high)) for low, high in found)
    below = trials(found[0][0] - 1).why if found and found[0][0] > 1 else None if found else trials(STEP).why
    above = trials(found[-1][1] + 1).why if found and found[-1][1] < PARTS else None if found else trials(PARTS).why
    return ShareResult(key=SHARE, intervals=intervals, below=below, above=above, tried=len(trials.done))


class _Trials:
    """Answers for one share, each asked once."""

    def __init__(self, job: Job, estimate: Callable[[Job], Answer]) -> None:
        self.job, self.estimate = job, estimate
        self.done: dict[int, _Trial] = {}
        self.refused: BadInput | None = None
        self.refusals = 0

    def __call__(self, part: int) -> _Trial:
        if part not in self.done:
            self.done[part] = self._try(part)
        return self.done[part]

    def _try(self, part: int) -> _Trial:
        try:
            answer = self.estimate(with_value(self.job, SHARE, part / PARTS))
        except BadInput as refused:
            self.refused, self.refusals = refused, self.refusals + 1
            return _Trial(False, str(refused), None)
        tokens = answer.size("kv.tokens")
        if answer.fits:
            return _Trial(True, "", tokens)
        why = why_not(answer) or f"{show_bytes(-(answer.headroom or 0))} too much in {answer.worst.peak_phase}"
        return _Trial(False, why, tokens)

    def border(self, fails: int, works: int) -> int:
        """The value next to one that fails, on the way from one that works, that still works."""
        while abs(works - fails) > 1:
            middle = (works + fails) // 2
            if self(middle).works:
                works = middle
            else:
                fails = middle
        return works

    def tokens(self, low: int, high: int) -> tuple[int, int] | None:
        """What the cache holds at two values."""
        first, last = self(low).tokens, self(high).tokens
        return None if first is None or last is None else (first, last)
