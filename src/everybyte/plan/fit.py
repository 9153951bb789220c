"""The largest value of a setting that fits, or the smallest. Memory is not always monotone in a setting (padding, shards, kernels with thresholds),
so the border that bisection finds is searched on both sides."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.job import Job
from everybyte.ledger.answer import Answer
from everybyte.ledger.entry import Phase
from everybyte.plan.keys import GPUS, SEQUENCES, SHARE, gpu_step, resolve_key, value_of, with_value
from everybyte.plan.limits import LARGEST, limit_of

PATIENCE_S = 60.0
"""A search that takes longer ends with the best value so far."""
LATTICES = tuple(2**k for k in range(13))
"""Settings are often bound to multiples of a power of two; each lattice is tried above the border."""
LOOKS = 16
"""Values tried on either side of the border."""


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Why the next value does not do: the rank kind and phase that run over, or the message that refuses the value."""

    value: int
    short_by: int | None = None
    rank: str | None = None
    phase: Phase | None = None
    refused: str | None = None
    why: str | None = None
    """Why an engine does not serve this though the device has room."""


class FitResult(msgspec.Struct, frozen=True, kw_only=True):
    """`value` is None when no value fits. `holes` are smaller values (larger ones, for the smallest) that were tried and do not fit."""

    key: str
    smallest: bool
    value: int | None
    answer: Answer | None
    stop: Stop | None
    holes: tuple[int, ...]
    tried: int
    unlimited: bool = False
    """Nothing that was tried upwards runs over; `value` is the largest one tried."""
    limit: str = ""
    """Why no larger value makes sense, where the setting ends by its nature."""
    is_complete: bool = True
    """False where time ran out: a larger value may fit."""


class _Trial(NamedTuple):
    value: int
    fits: bool
    answer: Answer | None
    refused: BadInput | None


class _OutOfTime(Exception):
    """The search has taken long enough."""


class _Trials:
    """Answers for one setting, each value asked once; a value that `over` says no to at once is answered when its answer is looked at."""

    def __init__(
        self, job: Job, path: str, estimate: Callable[[Job], Answer], over: Callable[[Job], bool], tell: Callable[[int], None], lay_out: Callable[[Job], Job]
    ) -> None:
        self.job, self.path, self.estimate, self.over, self.tell, self.lay_out = job, path, estimate, over, tell, lay_out
        self.done: dict[int, _Trial] = {}
        self.limit = limit_of(job, path)
        self.end = monotonic() + PATIENCE_S

    def __call__(self, value: int) -> _Trial:
        trial = self.done.get(value)
        if trial is None or (trial.answer is None and trial.refused is None):
            self.done[value] = trial = self._try(value)
        return trial

    def fits(self, value: int) -> bool:
        """Whether the job with this value fits."""
        if value not in self.done:
            self.done[value] = self._try(value, at_once=True)
        return self.done[value].fits

    def best(self) -> int | None:
        """The largest value so far that fits."""
        return max((value for value, trial in self.done.items() if trial.fits), default=None)

    def _try(self, value: int, *, at_once: bool = False) -> _Trial:
        if self.done and monotonic() > self.end:
            raise _OutOfTime
        self.tell(value)
        try:
            job = self.lay_out(with_value(self.job, self.path, value))
            if at_once and self.over(job):
                return _Trial(value, False, None, None)
            answer = self.estimate(job)
        except BadInput as refused:
            return _Trial(value, False, None, refused)
        return _Trial(value, works(answer, self.path, value), answer, None)

    def next_failure(self, value: int, step: int) -> _Trial:
        """The first tried value above that needs too much; the neighbour where each is refused for another reason."""
        failed = sorted(v for v, trial in self.done.items() if v > value and not trial.fits and trial.refused is None)
        return self(failed[0] if failed else value + step)

    def not_fitting(self, low: int, high: int) -> tuple[int, ...]:
        """Values between the two that were tried, that no setting refuses, and that do not fit."""
        return tuple(sorted(v for v, trial in self.done.items() if low < v < high and not trial.fits and trial.refused is None))


def works(answer: Answer, path: str, value: int) -> bool:
    """Whether the answer for one value of a setting counts as fitting. Of sequences the cache must hold so many of the full context at once: an engine
    starts anyway and lets requests wait."""
    held = path != SEQUENCES or answer.figures.get("kv.concurrency", value) >= value
    return bool(answer.fits) and held


def fit(
    job: Job,
    key: str,
    estimate: Callable[[Job], Answer] | None = None,
    tell: Callable[[int], None] = lambda value: None,
    lay_out: Callable[[Job], Job] = lambda job: job,
) -> FitResult:
    """The largest value of `key` (`micro_batch`, `seq_len`, `context`, `adapter.rank` ...) that fits; with a leading minus (`-gpus`) the smallest.

    It always ends: at the setting's natural limit, or after PATIENCE_S with the best value so far. `tell` hears of each value that is tried; `lay_out` fills
    in what a job leaves open once it has the value. Raises BadInput for an unknown key, for a job without a GPU, and when every value is refused.
    """
    if job.hardware is None or job.hardware.gpu is None:
        raise BadInput("hardware.gpu", "is needed to say what fits; name a GPU")
    smallest = key.startswith("-")
    path = resolve_key(job, key.removeprefix("-"))
    if path == SHARE:
        raise BadInput("--grow", "memory_fraction has an interval of values that work, not a largest one: plan.share.feasible finds it")
    asked, over = _estimator() if estimate is None else (estimate, lambda job: False)
    trials = _Trials(job, path, asked, over, tell, lay_out)
    try:
        result = _smallest(job, path, trials) if smallest else _largest(job, path, trials)
    except _OutOfTime:
        return _so_far(path, trials, smallest=smallest)
    refusals = [trial.refused for trial in trials.done.values() if trial.refused]
    if result.value is None and len(refusals) == len(trials.done):
        raise refusals[0]
    return result


def _so_far(path: str, trials: _Trials, *, smallest: bool) -> FitResult:
    """What is known when time runs out. A smallest value is not told from half a search."""
    value = None if smallest else trials.best()
    answer = trials.done[value].answer if value is not None else None
    return FitResult(key=path, smallest=smallest, value=value, answer=answer, stop=None, holes=(), tried=len(trials.done), is_complete=False)


def _estimator() -> tuple[Callable[[Job], Answer], Callable[[Job], bool]]:
    from everybyte.estimator import estimate, runs_over

    return estimate, runs_over


def _largest(job: Job, path: str, trials: _Trials) -> FitResult:
    limit = trials.limit.value
    step = gpu_step(job) if path == GPUS else 1
    value = _first_that_fits(trials, min(value_of(job, path) or step, limit), step)
    if value is None:
        return _result(path, trials, None, _stop(trials.next_failure(0, step)))
    unlimited = False
    while True:
        over = _first_failure_above(trials, value, limit)
        if over is None:
            value, unlimited = limit, True
            break
        value = _bisect(trials.fits, value, over, step)
        higher = _higher_that_fits(trials, value, over, step, limit)
        if higher is None:
            break
        value = higher
    for i in range(1, LOOKS):
        trials.fits(max(step, value * i // LOOKS // step * step))
    stop = None if unlimited else _stop(trials.next_failure(value, step))
    return _result(path, trials, value, stop, unlimited=unlimited)


def _first_that_fits(trials: _Trials, start: int, step: int) -> int | None:
    """The start if it fits, else a smaller value by halves, else a power of two where small values are refused."""
    halves = [start]
    while halves[-1] > step:
        halves.append(max(step, halves[-1] // 2 // step * step))
    candidates = [*halves, *(step * multiple for multiple in LATTICES)]
    return next((value for value in candidates if trials.fits(value)), None)


def _first_failure_above(trials: _Trials, value: int, limit: int) -> int | None:
    """The first value by doubling that does not fit; None when the limit fits."""
    while trials.fits(value):
        if value >= limit:
            return None
        value = min(2 * value, limit)
    return value


def _bisect(fits: Callable[[int], bool], low: int, high: int, step: int) -> int:
    """The last multiple of `step` that fits before one that does not, between `low` (fits) and `high` (does not)."""
    while high - low > step:
        middle = low + (high - low) // 2 // step * step
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _higher_that_fits(trials: _Trials, value: int, over: int, step: int, limit: int) -> int | None:
    """A value above the border that fits nevertheless: on the lattices of powers of two, and spread up to twice the first failure."""
    lattice = [(value // multiple + 1) * multiple for multiple in LATTICES]
    spread = [value + (2 * over - value) * i // LOOKS for i in range(1, LOOKS + 1)]
    candidates = {candidate // step * step for candidate in (*lattice, *spread)}
    return max((c for c in candidates if value < c <= limit and trials.fits(c)), default=None)


def _smallest(job: Job, path: str, trials: _Trials) -> FitResult:
    step = gpu_step(job) if path == GPUS else 1
    limit = trials.limit.value
    value = next((v for v in range(step, (LOOKS + 1) * step, step) if trials.fits(v)), None)
    if value is None:
        low = LOOKS * step
        high = low * 2
        while high <= limit and not trials.fits(high):
            low, high = high, high * 2
        if high > limit:
            return _result(path, trials, None, _stop(trials(low)), smallest=True)
        value = high - step * _bisect(lambda down: trials.fits(high - down * step), 0, (high - low) // step, 1)
    below = trials(value - step) if value > step else None
    return _result(path, trials, value, _stop(below) if below else None, smallest=True)


def _stop(trial: _Trial) -> Stop:
    if trial.answer is None:
        return Stop(value=trial.value, refused=str(trial.refused))
    worst = trial.answer.worst
    short_by = -trial.answer.headroom if trial.answer.headroom is not None else None
    return Stop(value=trial.value, short_by=short_by, rank=worst.label, phase=worst.peak_phase, why=why_not(trial.answer))


def why_not(answer: Answer) -> str | None:
    """What keeps a job from being served: the engine's refusal, or a cache that is too small; None where memory runs over."""
    if answer.refusals:
        return answer.refusals[0]
    held, context = answer.figures.get("kv.concurrency"), answer.job.get("serve", {}).get("context")
    if not answer.fits or held is None or not context:
        return None
    return f"the cache holds {held:,.1f} sequences of {context:,} tokens"


def _result(path: str, trials: _Trials, value: int | None, stop: Stop | None, *, smallest: bool = False, unlimited: bool = False) -> FitResult:
    low, high = (value or 0, LARGEST) if smallest else (0, value or 0)
    return FitResult(
        key=path,
        smallest=smallest,
        value=value,
        answer=trials(value).answer if value else None,
        stop=stop,
        holes=trials.not_fitting(low, high) if value else (),
        tried=len(trials.done),
        unlimited=unlimited,
        limit=trials.limit.why if unlimited else "",
    )
