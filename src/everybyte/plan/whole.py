"""A plan for one or several numbers of GPUs: every search, what is said across them, and the front of all plans that were seen."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from everybyte.job import Job
from everybyte.plan.front import front
from everybyte.plan.layouts.asked import asked_for
from everybyte.plan.money import Rent, rent_of
from everybyte.plan.search import Found, Objective, Plan, Tell, checked, search, sorted_by


class Planned(NamedTuple):
    """What a plan answers. `plans` are of all numbers of GPUs together, best first."""

    job: Job
    objective: Objective
    plans: tuple[Plan, ...]
    front: tuple[Plan, ...]
    found: tuple[Found, ...]
    rents: tuple[Rent, ...]
    notes: tuple[str, ...]

    def found_of(self, plan: Plan) -> Found:
        """The search that a plan comes from."""
        return next(one for one in self.found if one.asked.gpus == plan.layout.gpus)


def planned(
    job: Job,
    gpus: Sequence[int],
    objective: Objective = "time",
    *,
    fixed: Sequence[tuple[str, str]] = (),
    top: int = 10,
    risk: bool = False,
    complete: bool = False,
    price: float | None = None,
    global_batch: int | None = None,
    tell: Tell = lambda done, of: None,
) -> Planned:
    """The `top` plans of a training job on each of `gpus`. Raises BadInput where the job says too little or nothing is legal."""
    found, rents = [], []
    for number in gpus:
        asked = asked_for(job, number, dict(fixed), global_batch)
        rents.append(rent_of(asked.card, number, price))
        found.append(search(asked, rents[-1], objective, top, risk=risk, complete=complete, tell=tell))
    plans = sorted_by(objective, [plan for one in found for plan in one.plans])[:top]
    return Planned(job, objective, tuple(plans), _front(found), tuple(found), tuple(rents), _notes(found))


def _front(found: Sequence[Found]) -> tuple[Plan, ...]:
    """The Pareto front of all searches: each of its points is checked by a full estimate, and where one falls out others can take its place."""
    seen = [plan for one in found for plan in one.seen]
    memory = {one.asked.gpus: one.memory for one in found}
    while True:
        points = front(seen)
        whole = {plan.layout: next(checked([plan], memory[plan.layout.gpus]), None) for plan in points}
        if all(whole[plan.layout] == plan for plan in points):
            return points
        seen = [kept for plan in seen if (kept := whole.get(plan.layout, plan)) is not None]


def _notes(found: Sequence[Found]) -> tuple[str, ...]:
    """Where more GPUs do not make the best step faster."""
    notes = []
    best = [(one.asked.gpus, min(plan.seconds for plan in one.plans)) for one in sorted(found, key=lambda one: one.asked.gpus) if one.plans]
    for (few, before), (many, after) in pairwise(best):
        if after >= before:
            notes.append(f"{many:,} GPUs are not faster than {few:,}: {after:.3g} s a step against {before:.3g} s")
    return tuple(notes)
