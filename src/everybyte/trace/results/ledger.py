"""From a trace to a ledger: the same rows, with the same ids, as an estimate of the same program has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from everybyte.ledger.build import Line, Text, build
from everybyte.ledger.entry import Category, Phase
from everybyte.ledger.ledger import Ledger
from everybyte.trace.recording.module_paths import BLOCK, Place, is_adapter, place_of, runs
from everybyte.trace.recording.timeline import HEAD, Timeline
from everybyte.trace.request import BUCKET, GATHERED, OUTPUT, REDUCED, BirthRow

STATIC: dict[Category, str] = {"parameter": "weights", "optimizer_state": "optimizer", "gradient": "gradients"}
"""How ids begin of what belongs to a parameter."""
WORKING = "working"
"""How ids begin of what the piece of the network has that runs; the others are told by runs of layers."""
WRAPPERS = {
    GATHERED: ("gathered", ""),
    OUTPUT: ("gathered", "all-gather output"),
    REDUCED: ("reduce", "reduce-scatter input"),
    BUCKET: ("buckets", "gradients"),
}
"""How the buffers of parallel wrappers are called; without a name by the piece of the network."""
PASSES: tuple[Phase, ...] = ("forward", "loss", "backward")
SOURCE = "traced: the program ran on fake tensors"
MOST_SHAPES = 3


class Named(NamedTuple):
    """How a row is called: the first part of its id, its place, and what it is."""

    group: str
    place: Place
    category: Category


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
    places = {timeline.place(birth) for birth in timeline.births.values()}
    written = runs(places | {place.whole for place in places})
    return build({phase: [*_lines(timeline, phase, position, written), *always] for phase, (_, position) in timeline.peaks.items()})


def _lines(timeline: Timeline, phase: Phase, position: int, written: Mapping[Place, str]) -> list[Line]:
    living = timeline.living(position)
    instant = _Instant(timeline, phase, position)
    rows: dict[tuple[str, Category], _Row] = {}
    for number, nbytes in living.items():
        birth = timeline.births[number]
        group, place, category = instant.named(birth)
        key = (f"{group}/{place if group == WORKING else written.get(place, place)}", category)
        row = rows.setdefault(key, _Row([], 0))
        row.births.append(birth)
        rows[key] = row._replace(bytes=row.bytes + nbytes)
    return [Line(id=name, category=category, bytes=row.bytes, text=row.text, source=SOURCE) for (name, category), row in rows.items()]


class _Instant:
    """An instant of the step, and how what lives then is called: in a pass by the piece of the network that runs, else by what it is."""

    def __init__(self, timeline: Timeline, phase: Phase, position: int) -> None:
        self.timeline, self.phase = timeline, phase
        self.running = timeline.running(position) if phase in PASSES else None
        self.began = timeline.backward_before(position) if timeline.goes_back(position) else position
        self.done = timeline.gone_back(position) if phase in PASSES else frozenset()
        """Pieces whose backward is done."""

    def named(self, birth: BirthRow) -> Named:
        """The row of a storage."""
        category, place = self.timeline.category_of(birth), self.timeline.place(birth)
        if birth.operation in WRAPPERS:
            group, name = WRAPPERS[birth.operation]
            return Named(group, Place("", None, name or place.piece), category)
        if category == "input":
            return Named("input", Place("", None, "batch"), category)
        if category == "gradient":
            return self._gradient(birth, place)
        if category in STATIC:
            adapts = category == "parameter" and is_adapter(birth.module)
            return Named("adapters" if adapts else STATIC[category], place, category)
        if self.running is None:
            return Named("temporaries" if birth.phase == "optimizer" else "lingering", place, category)
        return self._passing(birth, place, category)

    def _gradient(self, birth: BirthRow, place: Place) -> Named:
        """Gradients of this backward pass are told by layer as long as it runs, those of earlier ones by module."""
        if self.running is None or birth.born < self.began:
            return Named("gradients", place, "gradient")
        if place.piece == self.running.piece:
            return Named(WORKING, place, "gradient")
        return Named("gradients", place.whole, "gradient")

    def _passing(self, birth: BirthRow, place: Place, category: Category) -> Named:
        """What forward and backward make: at work in the piece that runs, kept by those that ran before, or a gradient on its way from the one behind."""
        assert self.running is not None
        forward = birth.phase == "forward" or birth.again
        made = place_of(birth.module)
        if self.running.piece in (place.piece, made.piece):
            return Named(WORKING, place if place.piece == self.running.piece else made, "activation" if forward else category)
        if not forward and place.piece == HEAD and birth.shape in self.timeline.parameter_shapes:
            return Named("gradients", place.whole, "gradient")  # of a tied table: the embedding adds to it
        if not forward:
            return Named(WORKING, self.running.within(BLOCK), category)
        if place.piece in self.done:
            return Named("lingering", place, "activation")
        return Named("autocast" if category == "temporary" else "activations", place, "activation")


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def phases_of(timeline: Timeline) -> tuple[Phase, ...]:
    """The phases that the last step has."""
    return tuple(timeline.peaks)
