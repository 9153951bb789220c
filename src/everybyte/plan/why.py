"""Why this plan and not the next: neighbours of a plan on each axis, and the measurement that would decide between two plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from everybyte.basics.errors import BadInput
from everybyte.basics.units import GiB
from everybyte.plan.layouts.clock import WORDS, Timed
from everybyte.plan.layouts.layout import AXES, Layout
from everybyte.plan.search import Found, Plan

COMPARED = ("tp", "cp", "pp", "ep", "micro_batch", "virtual", "recompute", "sharding", "precision", "grads", "moments")
"""Choices of which a neighbour is told."""
FOLLOW = ("dp", "grad_accum", "etp")
"""Choices that follow from others and may differ as well."""
FREE = ("virtual", "recompute")
"""What a neighbour on an axis of the mesh may choose anew."""
MEASURED: dict[str, str] = {
    "products": "TFLOP/s of the large matrix products in the type of the run",
    "attention": "time of attention's kernels at this length of sequences",
    "elementwise": "bandwidth of a long copy in the device's memory",
    "head": "TFLOP/s of the product with the vocabulary",
    "host": "time of a step with a tiny micro-batch, which the host bounds",
    "recompute": "TFLOP/s of the large matrix products in the type of the run",
    "bubble": "time of one micro-batch on the first and on the last pipeline stage",
    "pipeline": "bandwidth of send and receive between two machines",
    "tensor": "bandwidth of all-gather inside a machine",
    "context": "bandwidth of send and receive among the ranks of one sequence",
    "expert": "bandwidth of all-to-all among the ranks of the experts",
    "data": "bandwidth of reduce-scatter among the data-parallel ranks",
    "optimizer": "time of the optimizer step",
}
"""What to measure for each term."""


class Neighbour(NamedTuple):
    """The fastest layout that differs in one choice."""

    choice: str
    value: str
    slower: float
    """Share of the plan's time; negative where it would be faster."""
    more: int | None
    """Bytes more than the plan needs; None where the framework refuses the layout."""
    fits: bool
    refused: str = ""

    @property
    def words(self) -> str:
        """`pp 2: 1.8 % slower, 13.0 GiB more`."""
        pace = f"{abs(self.slower):.1%} {'slower' if self.slower >= 0 else 'faster'}"
        if self.refused:
            return f"{self.choice} {self.value}: {pace}; refused: {self.refused}"
        memory = f"{abs(self.more or 0) / GiB:,.1f} GiB {'more' if (self.more or 0) >= 0 else 'less'}"
        return f"{self.choice} {self.value}: {pace}, {memory}" + ("" if self.fits else ", which does not fit")


def neighbours(found: Found, plan: Plan) -> tuple[Neighbour, ...]:
    """The nearest values on both sides of every choice of a plan, as far as they are legal."""
    return tuple(one for choice in COMPARED for one in _on(found, plan, choice))


def _on(found: Found, plan: Plan, choice: str) -> Iterator[Neighbour]:
    """The fastest layout for each other value of one choice; of sizes only the next smaller and the next larger."""
    mine = getattr(plan.layout, choice)
    by_value: dict[object, tuple[Timed, Layout]] = {}
    for time, layout in found.candidates:
        value = getattr(layout, choice)
        if value != mine and value not in by_value and _differs_only(layout, plan.layout, choice):
            by_value[value] = (time, layout)
    for value in _nearest(list(by_value), mine) if isinstance(mine, int) else by_value:
        yield _neighbour(found, plan, choice, *by_value[value])


def _nearest(values: list[object], mine: int) -> list[int]:
    """The next smaller and the next larger number, where there are some."""
    sizes = sorted(value for value in values if isinstance(value, int))
    return [size for size in (max((s for s in sizes if s < mine), default=0), min((s for s in sizes if s > mine), default=0)) if size]


def _differs_only(layout: Layout, plan: Layout, choice: str) -> bool:
    free = (choice, *FOLLOW, *(FREE if choice in ("tp", "cp", "pp", "ep") else ()))
    return all(getattr(layout, name) == getattr(plan, name) for name in AXES if name not in free)


def _neighbour(found: Found, plan: Plan, choice: str, time: Timed, layout: Layout) -> Neighbour:
    value = layout.recompute.label if choice == "recompute" else str(getattr(layout, choice))
    slower = time.seconds / plan.seconds - 1
    answered = found.memory.answer(layout)
    if isinstance(answered, BadInput):
        return Neighbour(choice, value, slower, None, fits=False, refused=answered.message)
    more = answered[1].peak_device - plan.memory.peak_device
    return Neighbour(choice, value, slower, more, fits=found.memory.over(answered[1]) is None)


ROUNDING = 1e-3
"""Terms that differ by a smaller share of the step say nothing."""


def deciding(first: Plan, second: Plan) -> str:
    """The one measurement that would decide between two plans: of the term in which they differ most."""
    gaps = {name: abs(getattr(first.time, name) - getattr(second.time, name)) for name in WORDS}
    name = max(gaps, key=lambda one: gaps[one])
    if not gaps[name] > second.seconds * ROUNDING:
        return "time of a step of both: every term is the same for them"
    apart = abs(second.seconds - first.seconds)
    gap = f"they differ most in {WORDS[name]} ({getattr(first.time, name):.3g} s and {getattr(second.time, name):.3g} s of a step)"
    return f"{MEASURED[name]}: {gap}, and are {apart / first.seconds:.1%} apart"
