"""The fastest layouts that fit, or the cheapest: all that are legal are ordered by their time, and memory is asked of the ledger from the front."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple, get_args

from msgspec.structs import replace

from everybyte.basics.errors import BadInput
from everybyte.basics.record import Record
from everybyte.basics.units import GiB
from everybyte.estimator import device_peak
from everybyte.job import Job
from everybyte.plan.layouts.as_job import Jobs
from everybyte.plan.layouts.asked import Asked
from everybyte.plan.layouts.clock import WORDS, Clock, Timed
from everybyte.plan.layouts.layout import Frame, Group, Layout
from everybyte.plan.layouts.legal import Space, space
from everybyte.plan.money import Rent
from everybyte.plan.quick import Quick, quick

Objective = Literal["time", "cost", "memory", "tokens-per-dollar"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)
NEAR = 1.01
"""Plans of one mesh within 1 % of its best are counted with it and shown once."""
HOUR_S = 3600
MILLION = 10**6
TOO_BIG = "needs more memory than the card has, at the upper end of the 90 % interval"
STATIC = "weights, gradients and optimizer states alone exceed the card"
DEAD = "no layout of the mesh fits: not even micro-batch 1 with full recomputation and the smallest states"
HOST = "needs more host memory than the node has"
Tell = Callable[[int, int], None]


class Plan(Record, frozen=True):
    """One layout with what it needs and how long it takes."""

    layout: Layout
    job: Job
    time: Timed
    memory: Quick
    tokens: int
    """Of a step, of all GPUs together."""
    usd_per_hour: float | None = None
    """Of all GPUs."""
    alike: int = 0
    """Further layouts of the mesh that fit and take at most NEAR times as long."""

    @property
    def seconds(self) -> float:
        """The least time of a step."""
        return self.time.seconds

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Trained tokens."""
        return self.tokens / self.seconds / self.layout.gpus

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Rent of all GPUs while a million tokens are trained."""
        return None if self.usd_per_hour is None else self.usd_per_hour / HOUR_S * self.seconds / self.tokens * MILLION

    @property
    def dominates(self) -> str:
        """What takes longest beside the products that no layout saves."""
        terms = {name: value for name, value in self.time._asdict().items() if name != "products"}
        name = max(terms, key=lambda one: terms[one])
        return f"{WORDS[name]} {terms[name] / self.seconds:.0%}" if terms[name] > 0 else WORDS["products"]


class Found(NamedTuple):
    """What a search found for one number of GPUs."""

    asked: Asked
    plans: tuple[Plan, ...]
    """The best plan of each mesh, best first."""
    seen: tuple[Plan, ...]
    """Every layout that was asked and fits."""
    examined: int
    """Legal layouts."""
    ledgers: int
    """Layouts whose memory was asked."""
    illegal: Counter[str]
    """Meshes that break a rule, by reason."""
    too_big: Counter[str]
    """Layouts that need too much, by reason; unless `is_complete` only of those that are faster than the last plan."""
    refused: Counter[str]
    """Layouts that the framework refuses, by its message."""
    smallest: Quick | None
    """Of all layouts that were asked, the one that needs least."""
    interval: tuple[float, float]
    """Measured over predicted time of a step, between which 9 of 10 measured runs lie."""
    is_complete: bool
    candidates: list[tuple[Timed, Layout]]
    """Legal layouts whose states leave room, the fastest first."""
    memory: Ledgers


class Ledgers:
    """Memory of layouts, and what one answer says of others: more sequences at once never need less, and a mesh whose most frugal layout does not fit
    has none that does."""

    def __init__(self, asked: Asked, risk: bool) -> None:
        self.jobs, self.asked, self.risk = Jobs(asked), asked, risk
        self.answers: dict[Layout, tuple[Job, Quick] | BadInput] = {}
        self.full: dict[Layout, Quick | None] = {}
        self.alive: dict[Frame, bool] = {}
        self.smallest: Quick | None = None

    def answer(self, layout: Layout) -> tuple[Job, Quick] | BadInput:
        """The job and its memory, or why the framework refuses it."""
        found = self.answers.get(layout)
        if found is None:
            found = self.answers[layout] = self._ask(layout)
        return found

    def _ask(self, layout: Layout) -> tuple[Job, Quick] | BadInput:
        try:
            job = self.jobs(layout)
            memory = quick(job)
        except BadInput as refused:
            return refused
        if self.smallest is None or memory.peak_device_high < self.smallest.peak_device_high:
            self.smallest = memory
        return job, memory

    def over(self, memory: Quick) -> str | None:
        """Why a layout does not fit; None where it does."""
        hardware = self.asked.job.hardware
        host = hardware.host_memory_gib if hardware is not None else None
        if host is not None and memory.host > host * GiB:
            return HOST
        needed = memory.peak_device if self.risk else memory.peak_device_high
        return TOO_BIG if needed > self.asked.capacity else None

    def fits(self, layout: Layout) -> bool:
        """Whether a layout fits, or may do for all that is known."""
        answered = self.answer(layout)
        return isinstance(answered, BadInput) or self.over(answered[1]) is None

    def verified(self, layout: Layout) -> Quick | None:
        """The memory of a layout by a full estimate, which replays the allocator; None where it does not fit."""
        if layout not in self.full:
            answered = self.answer(layout)
            self.full[layout] = None if isinstance(answered, BadInput) else self._verified(*answered)
        return self.full[layout]

    def _verified(self, job: Job, memory: Quick) -> Quick | None:
        peak = device_peak(job)
        whole = replace(memory, peak_allocated=peak.allocated, peak_device=peak.device, peak_device_high=peak.high)
        return whole if peak.fits and self.over(whole) is None else None

    def leaner_fit(self, layout: Layout) -> bool:
        """Whether the layouts fit that need no more than this one: the smallest micro-batch, one chunk a rank, 16-bit gradients and moments. Each is asked
        once for many."""
        return all(leaner == layout or self.fits(leaner) for leaner in _leaner(layout))


NARROW = "bf16"


def _leaner(layout: Layout) -> Iterator[Layout]:
    narrow = replace(layout, grads=layout.grads and NARROW, moments=layout.moments and NARROW)
    simple = narrow if layout.recompute.layers else replace(narrow, virtual=1)
    yield replace(simple, micro_batch=1, grad_accum=layout.micro_batch * layout.grad_accum)
    yield simple
    yield narrow


def search(
    asked: Asked,
    rent: Rent,
    objective: Objective = "time",
    top: int = 10,
    *,
    risk: bool = False,
    complete: bool = False,
    tell: Tell = lambda done, of: None,
) -> Found:
    """The `top` best groups of layouts (mesh, sharding, offload) with the best layout of each. Host memory is used only where nothing fits without.

    `risk` takes the predicted figure, not the upper end of its interval; `complete` asks for every layout, so that the counts of rejections are of all.
    Raises BadInput where no layout is legal.
    """
    wants_offload = any(key == "offload" and value != "none" for key, value in asked.fixed)
    found = _search(asked, rent, objective, top, tell, risk=risk, complete=complete, offload=wants_offload)
    if found.plans or wants_offload or len(asked.family.offload) == 1 or any(key == "offload" for key, _ in asked.fixed):
        return found
    if not space(asked, offload=True).layouts:
        return found
    return _search(asked, rent, objective, top, tell, risk=risk, complete=complete, offload=True)


def _search(asked: Asked, rent: Rent, objective: Objective, top: int, tell: Tell, *, risk: bool, complete: bool, offload: bool) -> Found:
    legal = space(asked, offload=offload)
    if not legal.layouts and not legal.too_big:
        raise BadInput("plan", _nothing_legal(asked, legal))
    clock, ledgers = Clock(asked), Ledgers(asked, risk)
    too_big: Counter[str] = Counter({STATIC: legal.too_big} if legal.too_big else {})
    refused: Counter[str] = Counter()
    timed = sorted(((clock(layout), layout) for layout in legal.layouts), key=lambda pair: pair[0].seconds)
    frugal = _most_frugal(timed)
    best: dict[Group, Plan] = {}
    seen: list[Plan] = []
    alike: Counter[Group] = Counter()
    for number, (time, layout) in enumerate(timed):
        tell(number, len(timed))
        if not complete and objective in ("time", "cost", "tokens-per-dollar") and len(best) >= top and layout.group not in best:
            break
        known = best.get(layout.group)
        if known is not None and time.seconds > known.seconds * NEAR and not complete:
            continue
        why = _rejection(layout, ledgers, frugal, refused)
        if why is not None:
            too_big[why] += 1
            continue
        answered = ledgers.answer(layout)
        if isinstance(answered, BadInput):
            continue
        whole = answered[1] if known is not None else ledgers.verified(layout)
        if whole is None:
            too_big[TOO_BIG] += 1
            continue
        plan = Plan(layout, answered[0], time, whole, asked.global_batch * asked.seq_len, rent.of(layout.gpus))
        seen.append(plan)
        if known is None:
            best[layout.group] = plan
        elif time.seconds <= known.seconds * NEAR:
            alike[layout.group] += 1
    seen += _frugal_plans(asked, ledgers, frugal, clock, rent, best)
    if objective == "memory":
        best = _by_memory(checked(seen, ledgers))
    plans = [replace(plan, alike=alike[plan.layout.group]) for plan in best.values()]
    plans = sorted_by(objective, plans)
    return Found(
        asked=asked,
        plans=tuple(plans[:top]),
        seen=tuple(seen),
        examined=len(legal.layouts) + legal.too_big,
        ledgers=len(ledgers.answers),
        illegal=legal.illegal,
        too_big=too_big,
        refused=refused,
        smallest=ledgers.smallest,
        interval=clock.interval(),
        is_complete=complete,
        candidates=timed,
        memory=ledgers,
    )


def _nothing_legal(asked: Asked, legal: Space) -> str:
    reasons = "; ".join(f"{why} ({count:,})" for why, count in legal.illegal.most_common(3))
    kept = " with " + ", ".join(f"{key}={value}" for key, value in asked.fixed) if asked.fixed else ""
    return f"no layout of {asked.gpus:,} GPUs is legal{kept}" + (f": {reasons}" if reasons else "; another value of --fix, or another number of GPUs, has some")


def _most_frugal(timed: Iterable[tuple[Timed, Layout]]) -> dict[Frame, Layout]:
    """The layout of each mesh and precision that needs least: smallest micro-batch, everything recomputed, states sharded, narrow and away."""
    found: dict[Frame, Layout] = {}
    for _, layout in timed:
        known = found.get(layout.frame)
        if known is None or _frugality(layout) < _frugality(known):
            found[layout.frame] = layout
    return found


SHARDED_MOST = ("zero3", "fsdp2", "fsdp1", "hsdp", "zero2", "fsdp2-no-reshard", "zero1", "distributed-optimizer", "ddp", "none")
AWAY_MOST = ("params", "optimizer", "none")
KEPT_LEAST = ("full", "selective", "none")


def _frugality(layout: Layout) -> tuple[int, ...]:
    policy = layout.recompute
    return (
        AWAY_MOST.index(layout.offload),
        SHARDED_MOST.index(layout.sharding),
        layout.grads == "fp32",
        layout.moments == "fp32",
        KEPT_LEAST.index(policy.policy) if not policy.layers else 1,
        layout.micro_batch,
        layout.virtual,
    )


def _rejection(layout: Layout, ledgers: Ledgers, frugal: dict[Frame, Layout], refused: Counter[str]) -> str | None:
    """Why a layout does not fit, by what is known of its mesh and of its smaller micro-batches, or by its own ledger. Counts what frameworks refuse."""
    if not _is_alive(layout.frame, ledgers, frugal):
        return DEAD
    if not ledgers.leaner_fit(layout):
        return TOO_BIG
    answered = ledgers.answer(layout)
    if isinstance(answered, BadInput):
        refused[str(answered)] += 1
        return None
    return ledgers.over(answered[1])


def _is_alive(frame: Frame, ledgers: Ledgers, frugal: dict[Frame, Layout]) -> bool:
    if frame not in ledgers.alive:
        ledgers.alive[frame] = ledgers.fits(frugal[frame])
    return ledgers.alive[frame]


def _frugal_plans(asked: Asked, ledgers: Ledgers, frugal: dict[Frame, Layout], clock: Clock, rent: Rent, best: dict[Group, Plan]) -> Iterator[Plan]:
    """The layout of each mesh and precision that needs least, where it was asked and fits: the other end of time against memory."""
    for layout in frugal.values():
        answered = ledgers.answers.get(layout)
        if isinstance(answered, tuple) and ledgers.over(answered[1]) is None and any(layout.mesh == group[0] for group in best):
            yield Plan(layout, answered[0], clock(layout), answered[1], asked.global_batch * asked.seq_len, rent.of(layout.gpus))


def checked(plans: Iterable[Plan], ledgers: Ledgers) -> Iterator[Plan]:
    """The plans that fit in a full estimate, with its figures."""
    for plan in plans:
        whole = ledgers.verified(plan.layout)
        if whole is not None:
            yield replace(plan, memory=whole)


def _by_memory(seen: Iterable[Plan]) -> dict[Group, Plan]:
    found: dict[Group, Plan] = {}
    for plan in seen:
        known = found.get(plan.layout.group)
        if known is None or _key("memory", plan) < _key("memory", known):
            found[plan.layout.group] = plan
    return found


def sorted_by(objective: Objective, plans: Iterable[Plan]) -> list[Plan]:
    """Plans, the best first."""
    return sorted(plans, key=lambda plan: _key(objective, plan))


def _key(objective: Objective, plan: Plan) -> tuple[float, ...]:
    cost = plan.usd_per_million_tokens
    if objective == "memory":
        return (plan.memory.peak_device_high, plan.seconds)
    if objective in ("cost", "tokens-per-dollar") and cost is not None:
        return (cost, plan.seconds)
    return (plan.seconds, plan.memory.peak_device_high)
