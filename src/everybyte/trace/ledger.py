"""From a trace to a ledger: the same rows, with the same ids, as an estimate of the same program has."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from everybyte.ledger.build import Line, Text, build
from everybyte.ledger.entry import Category, Phase
from everybyte.ledger.ledger import Ledger
from everybyte.trace.asked import BirthRow
from everybyte.trace.places import runs
from everybyte.trace.timeline import Timeline

GROUP: dict[Category, str] = {"parameter": "weights", "gradient": "gradients", "optimizer_state": "optimizer", "activation": "activations"}
"""How ids begin; what is in no group is at work."""
WORKING = "working"
SOURCE = "traced: the program ran on fake tensors"
MOST_SHAPES = 3


class _Row(NamedTuple):
    """Births of one id and category that live at an instant."""

    births: list[BirthRow]
    bytes: int

    def text(self) -> Text:
        """`32 × (1, 1024, 4096) bfloat16`: what the row is made of, the largest first."""
        shapes = Counter((birth.shape, birth.dtype) for birth in self.births)
        largest = sorted(shapes.items(), key=lambda item: -item[1] * _elements(item[0][0]))
        words = [f"{count} × {shape or 'scratch'} {dtype}".strip() for (shape, dtype), count in largest[:MOST_SHAPES]]
        return Text(" + ".join(words) + (" + …" if len(largest) > MOST_SHAPES else ""), {})


def ledger_of(timeline: Timeline, always: tuple[Line, ...] = ()) -> Ledger:
    """The rows at the highest instant of each phase of the last step. `always` are rows that live in every phase and that no event shows."""
    return build({phase: [*_lines(timeline, position), *always] for phase, (_, position) in timeline.peaks.items()})


def _lines(timeline: Timeline, position: int) -> list[Line]:
    living = timeline.living(position)
    births = [timeline.births[number] for number in living]
    written = runs(timeline.place(birth) for birth in births)
    rows: dict[tuple[str, Category], _Row] = {}
    for birth in births:
        category = timeline.category_of(birth)
        name = (_id(category, written[timeline.place(birth)]), category)
        row = rows.get(name, _Row([], 0))
        rows[name] = _Row([*row.births, birth], row.bytes + living[birth.id])
    return [Line(id=name, category=category, bytes=row.bytes, text=row.text, source=SOURCE) for (name, category), row in rows.items()]


def _id(category: Category, place: str) -> str:
    if category == "input":
        return "input/batch"
    return f"{GROUP.get(category, WORKING)}/{place}"


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def phases_of(timeline: Timeline) -> tuple[Phase, ...]:
    """The phases that the last step has."""
    return tuple(timeline.peaks)
