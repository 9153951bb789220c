"""The search: every layout is timed, then memory is asked of the ledger from the fastest on, until enough of them fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from everybyte.basics.errors import BadInput, EverybyteError
from everybyte.catalog.gpus import find_gpu
from everybyte.catalog.speed_cards import SpeedCard
from everybyte.estimator import estimate, headline
from everybyte.job import Job
from everybyte.job.pattern import model_of
from everybyte.ledger.answer import Answer
from everybyte.ledger.time import TimeLedger
from everybyte.models.source import network_of
from everybyte.plan.hardware.offers import COMPARED, offers
from everybyte.plan.layouts.space import Layout, job_of, layouts
from everybyte.plan.time.figures import card_of, timed
from everybyte.plan.time.shape import NetworkShape, shape_of
from everybyte.plan.time.training.setting import train_setting
from everybyte.plan.time.training.step import training_step

Objective = Literal["time", "memory", "cost"]
WIDE = 0.01
"""Variants of one mesh within this share of its best time are shown once."""
MOST_ASKED = 2000
"""Ledgers that are asked in full before the search gives up."""


class Candidate(NamedTuple):
    """A layout with its time. `tokens` are those of a step."""

    layout: Layout
    gpus: int
    job: Job
    ledger: TimeLedger
    tokens: int


class Plan(NamedTuple):
    """A layout that fits. `variants` are other layouts of its mesh, as fast within 1 %."""

    candidate: Candidate
    answer: Answer
    usd_per_million_tokens: float | None
    variants: int

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.candidate.ledger.seconds

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Trained tokens."""
        return self.candidate.tokens / self.seconds / self.candidate.gpus

    @property
    def margin(self) -> int:
        """Bytes left on the fullest device."""
        return self.answer.headroom or 0


class Found(NamedTuple):
    """The plans in the order asked for, and what became of all layouts."""

    plans: tuple[Plan, ...]
    considered: int
    asked: int
    rejected: dict[str, int]
    """Reason -> how many of those that were asked."""
    nearest: Plan | None
    """The layout that needs least, where none fits."""


def search(
    job: Job,
    gpus: tuple[int, ...],
    global_batch: int,
    fixed: Mapping[str, Any],
    top: int,
    objective: Objective = "time",
    *,
    risk: bool = False,
    tell: Callable[[str], None] = lambda words: None,
) -> Found:
    """The best `top` meshes for a training job on each number of GPUs. A layout whose 90 % interval crosses the card is left out unless `risk`.

    Raises BadInput where no layout is legal, where the GPU has no clock, and for a job that is no training.
    """
    shape, card = _clock(job)
    candidates = [found for n in gpus for found in _timed(job, shape, card, n, global_batch, fixed)]
    if not candidates:
        raise BadInput(
            "--gpus", f"no legal layout on {', '.join(f'{n:,}' for n in gpus)} GPUs for a global batch of {global_batch:,}; try another --global-batch"
        )
    candidates.sort(key=lambda one: (one.ledger.seconds / one.tokens * (one.gpus if objective == "cost" else 1), one.layout))
    return _fitting(candidates, top, objective, risk=risk, tell=tell)


def _clock(job: Job) -> tuple[NetworkShape, SpeedCard]:
    if job.train is None:
        raise BadInput("train", "plan ranks training layouts; `everybyte fit` and `everybyte hardware` answer for servers")
    shape, card = shape_of(network_of(model_of(job), "model")), card_of(job)
    if card is None:
        raise BadInput("hardware.gpu", "plan needs a GPU of the catalogue whose rates are known; `everybyte gpus` lists them")
    if shape is None:
        raise BadInput("model", "plan ranks layouts of language models")
    return shape, card


def _timed(job: Job, shape: NetworkShape, card: SpeedCard, gpus: int, global_batch: int, fixed: Mapping[str, Any]) -> list[Candidate]:
    found = []
    for layout in layouts(job, shape, gpus, global_batch, fixed):
        made = job_of(job, layout, gpus, shape.count)
        setting = train_setting(made, shape, card)
        found.append(Candidate(layout, gpus, made, training_step(shape, setting, card), setting.tokens_per_step))
    return found


def _fitting(candidates: list[Candidate], top: int, objective: Objective, *, risk: bool, tell: Callable[[str], None]) -> Found:
    """Asks the ledger from the front. What is larger in every respect than a layout that does not fit is not asked."""
    rejected: Counter[str] = Counter()
    plans: dict[tuple[Any, ...], Plan] = {}
    too_big = TooBig()
    nearest: Candidate | None = None
    least, asked = 0, 0
    for one in candidates:
        mesh = (one.gpus, *one.layout.mesh)
        if mesh in plans:
            best = plans[mesh]
            if one.ledger.seconds <= best.seconds * (1 + WIDE):
                plans[mesh] = best._replace(variants=best.variants + 1)
            continue
        if len(plans) >= top or asked >= MOST_ASKED:
            continue
        if too_big.covers(mesh, one.layout):
            rejected["larger than a layout of its mesh that does not fit"] += 1
            continue
        asked += 1
        tell(one.layout.said())
        needs, answer, why = _asked(one, risk=risk)
        if not why and answer is not None:
            plans[mesh] = Plan(one, timed(answer), _usd(one), 0)
            continue
        rejected[why] += 1
        if why.startswith(NO):
            too_big.add(mesh, one.layout)
        if needs and (nearest is None or needs < least):
            nearest, least = one, needs
    ordered = sorted(plans.values(), key=ORDERS[objective])
    closest = Plan(nearest, estimate(nearest.job), None, 0) if nearest is not None and not ordered else None
    return Found(tuple(ordered), len(candidates), asked, dict(rejected), closest)


NO = "does not fit"
RECOMPUTED = {"none": 0, "selective": 1, "experts": 1, "full": 2}


class TooBig:
    """Layouts that do not fit: of the same mesh, none fits with a larger micro-batch, less recomputation, wider gradients and as many chunks or more."""

    def __init__(self) -> None:
        self._of: dict[tuple[Any, ...], list[Layout]] = {}

    def add(self, mesh: tuple[Any, ...], layout: Layout) -> None:
        """One more that does not fit."""
        self._of.setdefault(mesh, []).append(layout)

    def covers(self, mesh: tuple[Any, ...], layout: Layout) -> bool:
        """Whether the layout is no smaller than one that does not fit."""
        return any(
            layout.micro_batch >= other.micro_batch
            and RECOMPUTED[layout.recompute] <= RECOMPUTED[other.recompute]
            and (layout.grads == other.grads or other.grads != "")
            and layout.chunks >= other.chunks
            for other in self._of.get(mesh, ())
        )


def _asked(one: Candidate, *, risk: bool) -> tuple[int, Answer | None, str]:
    """What a layout needs at least, its answer, and why it does not do."""
    try:
        least = headline(one.job)["peak.allocated"]
        if least > _capacity(one.job):
            return least, None, f"{NO}: what is allocated is more than the card"
        answer = estimate(one.job)
    except EverybyteError as refused:
        return 0, None, f"refused: {refused}"
    if not answer.fits:
        return least, answer, f"{NO}: reserved memory and what lies beside it are more than the card"
    if answer.verdict == "close" and not risk:
        return least, answer, "close: the 90 % interval crosses the card (--risk allows it)"
    return least, answer, ""


def _capacity(job: Job) -> int:
    gpu = job.hardware.gpu if job.hardware else None
    return find_gpu(gpu).capacity if isinstance(gpu, str) else 2**62


def _usd(one: Candidate) -> float | None:
    """Rent of a million tokens at the lowest price of the catalogue."""
    gpu = one.job.hardware.gpu if one.job.hardware else None
    if not isinstance(gpu, str):
        return None
    cheapest = next((offer for offer in offers(find_gpu(gpu), one.gpus) if offer.per_hour is not None and offer.instance.currency == COMPARED), None)
    if cheapest is None or cheapest.per_hour is None:
        return None
    return cheapest.per_hour / 3600 * one.ledger.seconds / one.tokens * 1e6


def _by_time(plan: Plan) -> float:
    return plan.candidate.ledger.seconds / plan.candidate.tokens


def _by_memory(plan: Plan) -> float:
    return -plan.margin


def _by_cost(plan: Plan) -> float:
    return plan.usd_per_million_tokens if plan.usd_per_million_tokens is not None else plan.seconds * plan.candidate.gpus / plan.candidate.tokens * 1e9


ORDERS: dict[Objective, Callable[[Plan], float]] = {"time": _by_time, "memory": _by_memory, "cost": _by_cost}


def front(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """The plans that no other beats in both time and margin (and cost, where several numbers of GPUs were asked for)."""
    return tuple(a for a in plans if not any(_beats(b, a) for b in plans))


def _beats(b: Plan, a: Plan) -> bool:
    pairs = [(_by_time(b), _by_time(a)), (-b.margin, -a.margin), (_by_cost(b), _by_cost(a))]
    return all(x <= y for x, y in pairs) and any(x < y for x, y in pairs)
