"""What a job needs as one whole-number setting grows: from small values to beyond the last that fits."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.job import Job
from everybyte.ledger.answer import Answer
from everybyte.ledger.by_category import by_category
from everybyte.ledger.entry import Category
from everybyte.plan.fit import fit, why_not, works
from everybyte.plan.keys import GPUS, gpu_step, resolve_key, value_of, with_value

OCTAVES = 7
"""A sweep begins this many doublings below the largest value that fits."""
STEPS = (8, 12, 10, 14, 9, 11, 13, 15)
"""Eighths of a doubling, in the order in which they are taken: first the powers of two, then the values half way between."""
BEYOND = 16
"""Where every value fits, the sweep goes so many times beyond the value of the job."""
FEWEST = 4
"""It goes at least so far."""
WHOLE = ("mesh", "gpus")
"""Sizes of a mesh and numbers of GPUs: only powers of two are of use, and others are mostly refused."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One value. `needed` and `parts` are those of the rank that needs most; a refused value has neither."""

    value: int
    fits: bool = False
    needed: int | None = None
    parts: dict[Category, int] = {}
    """Bytes by category at the peak; they add up to `needed`."""
    refused: str | None = None
    """Why the value cannot be asked for."""
    why: str | None = None
    """Why an engine does not serve this though the device has room."""
    room: int | None = None
    """Tokens that the cache of a serving engine has room for, whatever the value."""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """The points in the order of their values. `last` is the largest value that fits; None where none does, or where no GPU is named."""

    key: str
    name: str
    points: tuple[Point, ...]
    capacity: int | None
    last: int | None
    unlimited: bool = False
    """No value that was tried runs over."""
    current: int | None = None
    """What the job states."""


def sweep(job: Job, key: str, estimate: Callable[[Job], Answer] | None = None, points: int = 24) -> Sweep:
    """About `points` values of the setting `key`, with what each needs. Raises BadInput for an unknown key and where every value is refused."""
    path = resolve_key(job, key)
    asked = _Remembered(estimate or _estimator())
    limited = job.hardware is not None and job.hardware.gpu is not None
    found = fit(job, path, asked) if limited else None
    last = found.value if found else None
    unlimited = bool(found and found.unlimited)
    current = value_of(job, path)
    step = gpu_step(job) if path == GPUS else 1
    border = last if last and not unlimited else (current or step) * (BEYOND if unlimited else 1)
    values = _values(border, current, step, points, doubling=any(word in path for word in WHOLE))
    made = tuple(_point(job, path, value, asked) for value in values)
    if all(point.refused for point in made):
        raise BadInput(path, f"every value that was tried is refused; {made[0].refused}")
    answers = [answer for answer in asked.answers.values() if isinstance(answer, Answer)]
    name = answers[0].name or answers[0].model.name
    hardware = answers[0].hardware
    return Sweep(
        key=path,
        name=name,
        points=made,
        capacity=hardware.capacity if hardware else None,
        last=None if unlimited else last,
        unlimited=unlimited,
        current=current,
    )


class _Remembered:
    """An estimator that answers each job once: the search for the border and the sweep ask for the same values."""

    def __init__(self, estimate: Callable[[Job], Answer]) -> None:
        self.estimate = estimate
        self.answers: dict[bytes, Answer | BadInput] = {}

    def __call__(self, job: Job) -> Answer:
        key = msgspec.json.encode(job)
        if key not in self.answers:
            try:
                self.answers[key] = self.estimate(job)
            except BadInput as refused:
                self.answers[key] = refused
        answer = self.answers[key]
        if isinstance(answer, BadInput):
            raise answer
        return answer


def _estimator() -> Callable[[Job], Answer]:
    from everybyte.estimator import estimate

    return estimate


def _values(border: int, current: int | None, step: int, points: int, *, doubling: bool) -> list[int]:
    """Values from small to beyond the border: all of them where they are few, else as many to a doubling as the points allow."""
    top = max(2 * border, FEWEST * step)
    if not doubling and top // step <= points:
        found = set(range(step, top + 1, step))
    else:
        low = max(step, border >> OCTAVES)
        octaves = max(1, (top // low).bit_length())
        each = 1 if doubling else min(max(1, points // octaves), len(STEPS))
        base = 1 << (low // step).bit_length() - 1
        found = {step * max(1, (base << k) * part // STEPS[0]) for k in range(octaves + 1) for part in STEPS[:each]}
        found = {value for value in found if low <= value <= 2 * top}
    found.update(value for value in (border, current) if value)
    return sorted(found)


def _point(job: Job, path: str, value: int, estimate: Callable[[Job], Answer]) -> Point:
    try:
        answer = estimate(with_value(job, path, value))
    except BadInput as refused:
        return Point(value=value, refused=str(refused))
    worst = answer.worst
    needed = answer.hardware.capacity - answer.headroom if answer.hardware and answer.headroom is not None else None
    parts = by_category(worst, needed)
    return Point(value=value, fits=works(answer, path, value), needed=sum(parts.values()), parts=parts, why=why_not(answer), room=_room(answer))


def _room(answer: Answer) -> int | None:
    tokens = answer.figures.get("kv.tokens")
    return None if tokens is None else int(tokens)
