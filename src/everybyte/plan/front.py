"""The Pareto front of plans: those that no other beats in time, room and price at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from everybyte.plan.search import Plan

Coordinates = tuple[float, float, float]
Point = TypeVar("Point")


def coordinates(plan: Plan) -> Coordinates:
    """(seconds of a step, bytes at the upper end of the interval, USD per million tokens): less is better in each."""
    return plan.seconds, float(plan.memory.peak_device_high), plan.usd_per_million_tokens or 0.0


def dominates(one: Coordinates, other: Coordinates) -> bool:
    """Whether one is nowhere worse and somewhere better."""
    return one != other and all(mine <= its for mine, its in zip(one, other, strict=True))


def front(plans: Iterable[Plan]) -> tuple[Plan, ...]:
    """The plans that none dominates, the fastest first; of equal ones the first."""
    kept: list[Plan] = []
    for plan in sorted(plans, key=coordinates):
        mine = coordinates(plan)
        if not any(coordinates(other) == mine or dominates(coordinates(other), mine) for other in kept):
            kept.append(plan)
    return tuple(kept)
