"""The timeline of a training step: which bytes live at the highest instant of each phase.

A network is a row of segments. In forward a segment runs on top of what all earlier ones keep; in backward on top of what the earlier ones
keep and of the gradients that the later ones made. Sizes are linear in the batch, so each segment offers a few candidate instants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from everybyte.basics.record import Record
from everybyte.layers.network import Network
from everybyte.layers.recording.replay import Instant
from everybyte.layers.recording.size import TOKENS, Batch
from everybyte.layers.recording.tape import Role, Storage
from everybyte.ledger.build import Line, Text, plain
from everybyte.ledger.entry import Category, Phase
from everybyte.rules.accounting.formula_text import group, storages_text
from everybyte.rules.step.layout import WHOLE, Layout, ShardEvent
from everybyte.rules.step.peak_candidates import measured, point_of
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.segments import Segment, ends_apart, segments

if TYPE_CHECKING:
    from everybyte.rules.sharding.fsdp_units import UnitRow

AUTOGRAD = "operations of the layer in the order of its forward; what autograd keeps of each (pytorch tools/autograd/derivatives.yaml)"
PASSED = "pytorch torch/csrc/autograd/input_buffer.cpp: the gradient of what several layers read (encoder states) is summed until its maker goes back"
CATEGORY: dict[Role, Category] = {"activation": "activation", "temporary": "temporary", "autograd_detail": "autograd_detail", "gradient": "gradient"}


class Peak(Record, frozen=True):
    """The highest instant of a phase: bytes of the step's own tensors, and what they are."""

    bytes: int
    segment: int
    """Index of the segment that runs."""
    before: int
    """How many copies of that segment ran before."""
    instant: Instant
    moment: ShardEvent

    @property
    def backward(self) -> bool:
        """Whether forward is done."""
        return self.moment not in ("gather", "forward")


Waiting = tuple[tuple[str, int], ...]
"""(piece of the network, micro-batches): kept tensors that are alive beside those of the micro-batch that runs, in a pipeline."""


class Frame:
    """What a timeline has whatever its batch is: the row, and of the layout what is gathered, stays or is left beside the tensors of each layer."""

    def __init__(self, row: tuple[Segment, ...]) -> None:
        self.row = row
        self.gradients: list[int] = []
        self.stays: list[int] = []
        self.beside: dict[int, dict[ShardEvent, int]] = {}
        self.units: UnitRow | None = None
        """Where a layout gathers units."""


@lru_cache(maxsize=512)
def _frame(network: Network, recipe: Recipe, layout: Layout) -> Frame:
    return Frame((ends_apart if layout.by_unit else segments)(network, recipe.setup, recipe.recompute, recipe.stream, layout.lives(recipe)))


class StepTimeline:
    """A step of one recipe on one rank: the peaks of its phases."""

    def __init__(self, network: Network, recipe: Recipe, layout: Layout = WHOLE, waiting: Waiting = ()) -> None:
        self.network, self.recipe, self.layout = network, recipe, layout
        self.frame = frame = _frame(network, recipe.timeless, layout)
        self.row = frame.row
        self.points = {"": point_of(recipe.batch)}
        for tower in network.towers:
            items = recipe.images or recipe.batch.b
            length = tower.tokens_per_item or (recipe.batch.m if tower.name == "encoder" else 0) or recipe.batch.s
            self.points[tower.name] = point_of(Batch(items, length, length))
        self.point = self.points[""]
        self.worst = point_of(recipe.batch._replace(is_uneven=True))
        by_unit, reentrant = layout.by_unit, recipe.recompute.mode == "reentrant"
        self.measures = [measured(s.tally, self.points[s.tower].batch, by_unit=by_unit, reentrant=reentrant) for s in self.row]
        self.kept = [m.kept for m in self.measures]
        self.cached = [m.cached for m in self.measures]
        self.lingering = [m.lingering for m in self.measures]
        if not frame.stays:
            frame.gradients = [layout.gradient_left(self, index) for index in range(len(self.row))]
            frame.stays = [layout.resident_after_forward(self, index) for index in range(len(self.row))]
        self.gradients, self.stays = frame.gradients, frame.stays
        in_flight = dict(waiting)
        self.waiting = [in_flight.get(s.part, 0) for s in self.row]
        self.waiting_bytes = sum(n * s.copies * kept for n, s, kept in zip(self.waiting, self.row, self.kept, strict=True)) if waiting else 0
        self._passed = self._passed_on()
        self._left = [g + h for g, h in zip(self.gradients, self.lingering, strict=True)]
        self._sum_up()

    def _sum_up(self) -> None:
        """Of each segment, and of the end, sums over all copies of the earlier ones: what is kept or stays, what is cached, what backward leaves."""
        kept = cached = left = 0
        self._kept_before, self._cached_before, self._left_before = [0], [0], [0]
        for segment, measure, stays, leaves in zip(self.row, self.measures, self.stays, self._left, strict=True):
            kept += segment.copies * ((0 if segment.offloaded else measure.kept) + stays)
            cached += segment.copies * (0 if segment.offloaded else measure.cached)
            left += segment.copies * leaves
            self._kept_before.append(kept)
            self._cached_before.append(cached)
            self._left_before.append(left)

    def _passed_on(self) -> list[tuple[int, int]]:
        """Of each segment, bytes of gradients of what another part made (encoder states): those that layers behind it have left, and those with its
        own. Each layer adds its own to the first (torch/csrc/autograd/input_buffer.cpp)."""
        found: list[tuple[int, int]] = []
        waiting: dict[str, int] = {}
        tower = ""
        for segment in reversed(self.row):
            if segment.tower != tower:
                waiting, tower = {}, segment.tower
            before = sum(waiting.values())
            waiting.update({s.what: s.size.at(self.points[tower]) for s in segment.tally.passed})
            found.append((before, sum(waiting.values())))
        return found[::-1]

    def _waits(self, index: int, before: int) -> int:
        """Bytes of such gradients while a copy of segment `index` goes back."""
        return self._passed[index][before < self.row[index].copies - 1]

    def beside(self, index: int) -> dict[ShardEvent, int]:
        """Bytes that the layout has beside the tensors of a segment that runs."""
        found = self.frame.beside.get(index)
        if found is None:
            found = self.frame.beside[index] = self.layout.sums_unsharded_and_comm(self, index)
        return found

    def peaks(self) -> dict[Phase, Peak]:
        """The highest instants of forward, loss and backward."""
        head = len(self.row) - 1 if self.row[-1].label == "head" else len(self.row)
        found: dict[Phase, Peak] = {"forward": self.forward(0, head)}
        if head < len(self.row):
            found["loss"] = max(self.forward(head, head + 1), self.backward(head, head + 1), key=lambda s: s.bytes)
        found["backward"] = self.backward(0, head)
        return found

    def forward(self, first: int, last: int) -> Peak:
        """The highest instant of forward over segments first..last (exclusive)."""
        best = Peak(0, first, 0, Instant(self.row[first].tally.kept_size, ()), "forward")
        for index in range(first, last):
            before = self.row[index].copies - 1
            held, beside = self._held(index, before, backward=False) + self.waiting_bytes, self.beside(index)
            for moment, size, instant in self.measures[index].forward:
                height = held + beside[moment] + size
                if height > best.bytes:
                    best = Peak(height, index, before, instant, moment)
        return best

    def backward(self, first: int, last: int) -> Peak:
        """The highest instant of backward over segments first..last (exclusive)."""
        best = Peak(0, first, 0, Instant(self.row[first].tally.kept_size, ()), "backward")
        for index in range(first, last):
            copies, later = self.row[index].copies, self._left_before[-1] - self._left_before[index + 1] + self.waiting_bytes
            rest = {before: later + self._rest(index, before) for before in {0, copies - 1}}
            beside = self.beside(index)
            for moment, size, instant in self.measures[index].backward:
                for before, held in rest.items():
                    height = held + beside[moment] + size
                    if height > best.bytes:
                        best = Peak(height, index, before, instant, moment)
        return best

    def _rest(self, index: int, before: int) -> int:
        """Bytes that are there of the other copies of a segment, of the layers before it, and that the layout has until backward is done."""
        left = (self.row[index].copies - 1 - before) * self._left[index]
        left += self._waits(index, before)
        return self._held(index, before, backward=True) + left + self.layout.sum_retained_in_backward(self, index, before)

    def _held(self, index: int, before: int, *, backward: bool) -> int:
        """Bytes that are there of the layers before a copy of segment `index`, `before` copies of which come earlier."""
        held = self._kept_before[index] + before * self.stays[index]
        held += 0 if self.row[index].offloaded else before * self.kept[index]
        if not backward:
            held += self._cached_before[index] + (0 if self.row[index].offloaded else before * self.cached[index])
        return held if self.recipe.recompute.in_flight is None else held + self._back_on_device(index, before, backward=backward)

    def _back_on_device(self, index: int, before: int, *, backward: bool) -> int:
        """What of it waits in host memory, but is on the device while a copy of segment `index` runs."""
        found = self._present(index, before, backward=backward)
        return sum(n * (self.kept[i] + (0 if backward else self.cached[i])) for i, n in found if self.row[i].offloaded)

    def done(self, index: int, before: int) -> tuple[int, ...]:
        """Of each segment, how many copies have gone back while a copy of segment `index` does, `before` copies of which wait."""
        return (*[0] * index, self.row[index].copies - 1 - before, *[s.copies for s in self.row[index + 1 :]])

    def _present(self, index: int, before: int, *, backward: bool) -> Iterator[tuple[int, int]]:
        """(segment, copies) whose kept tensors are on the device while a copy of segment `index` runs, `before` copies of which ran earlier."""
        waiting = 0 if backward else (self.recipe.recompute.in_flight or 0)
        for i in range(index, -1, -1):
            ran = before if i == index else self.row[i].copies
            if self.row[i].offloaded:
                ran = min(ran, waiting)
                waiting -= ran
            if ran:
                yield i, ran

    def images(self) -> Iterator[Line]:
        """Images of the batch, of the main network or of its towers: they live outside the step."""
        for segment in self.row:
            given = segment.tally.start
            if given.persistent and not given.outside and given.dims not in ((), (TOKENS,)):
                size = given.size.at(self.points[segment.tower])
                yield Line(f"input/{segment.tower or 'images'}", "input", size, self._text(segment, (given,), 1), "images of the last batch")

    def lines(self, peak: Peak) -> Iterator[Line]:
        """The rows of the step's own tensors at a peak."""
        present = dict(self._present(peak.segment, peak.before, backward=peak.backward))
        for index, segment in enumerate(self.row):
            ran = present.get(index, 0)
            if ran:
                yield from self._stored(segment, segment.tally.kept, ran, "activations")
                if not peak.backward:
                    yield from self._stored(segment, segment.tally.cached, ran, "autocast")
            undone = segment.copies if index > peak.segment else (segment.copies - 1 - peak.before if index == peak.segment else 0)
            if peak.backward and undone and self.gradients[index]:
                yield self._made_gradients(segment, undone, self.gradients[index])
            if peak.backward and undone:
                yield from self._stored(segment, segment.tally.lingering, undone, "lingering")
            if self.waiting[index]:
                yield from self._stored(segment, segment.tally.kept, segment.copies * self.waiting[index], "in flight")
            yield from self._staying(index, segment.copies if index < peak.segment else (peak.before if index == peak.segment else 0))
        if peak.backward and (size := self._waits(peak.segment, peak.before)):
            yield Line("gradients/passed on", "autograd_detail", size, plain("g", g=size), PASSED, "formula")
        if peak.backward:
            yield from self.layout.retained_in_backward(self, self.done(peak.segment, peak.before))
        yield from self.layout.unsharded_and_comm(self, peak.segment, peak.moment)
        yield from self._working(peak)

    def held_bytes(self) -> int:
        """The sum of `held`."""
        sizes = zip(self.row, self.kept, self.cached, self.stays, strict=True)
        return self.waiting_bytes + sum(
            s.copies * ((0 if s.offloaded else kept) + (cached if s.label == "head" else 0) + stays) for s, kept, cached, stays in sizes
        )

    def held(self) -> Iterator[Line]:
        """What is there between forward and backward: kept tensors, and of the head what the function that works out the loss still has."""
        for index, segment in enumerate(self.row):
            if not segment.offloaded:
                yield from self._stored(segment, segment.tally.kept, segment.copies, "activations")
            if segment.label == "head":
                yield from self._stored(segment, segment.tally.cached, segment.copies, "logits")
            if self.waiting[index]:
                yield from self._stored(segment, segment.tally.kept, segment.copies * self.waiting[index], "in flight")
            yield from self._staying(index, segment.copies)

    def outliving_bytes(self) -> int:
        """The sum of `outliving`."""
        return sum(s.copies * one for s, one in zip(self.row, self.lingering, strict=True)) if self.recipe.graph_outlives else 0

    def outliving(self) -> Iterator[Line]:
        """What the graph of a micro-batch still holds when its backward is done, where the recipe lets the graph live on."""
        if self.recipe.graph_outlives:
            for segment in self.row:
                yield from self._stored(segment, segment.tally.lingering, segment.copies, "lingering")

    def _stored(self, segment: Segment, storages: tuple[Storage, ...], copies: int, name: str) -> Iterator[Line]:
        for module, members in group(storages).items():
            yield self._line(f"{name}/{segment.label}/{module}", "activation", segment, members, copies)

    def _line(self, name: str, category: Category, segment: Segment, members: tuple[Storage, ...], copies: int) -> Line:
        """A row of tensors; with its range, where routing decides how many tokens come to the experts of this rank."""
        size = copies * sum(s.size.at(self.points[segment.tower]) for s in members)
        line = Line(name, category, size, self._text(segment, members, copies), AUTOGRAD)
        if not self.network.experts or segment.tower:
            return line
        worst = copies * sum(s.size.at(self.worst) for s in members)
        return line._replace(basis="assumed", low=size, high=worst) if worst > size else line

    def _staying(self, index: int, copies: int) -> Iterator[Line]:
        if size := copies * self.stays[index]:
            text = plain("copies·U", copies=copies, U=self.stays[index])
            yield Line(f"unsharded/{self.row[index].label}", "parameter", size, text, "weights that stay gathered until the layer's backward", "formula")

    def _made_gradients(self, segment: Segment, copies: int, one: int) -> Line:
        text = self._text(segment, segment.tally.gradients, copies)
        if one != segment.tally.weight_gradients.at(self.point):
            text = plain("copies·g", copies=copies, g=one)
        return Line(f"gradients/{segment.label}", "gradient", copies * one, text, "gradients of the layers whose backward has run")

    def _text(self, segment: Segment, members: tuple[Storage, ...], copies: int) -> Callable[[], Text]:
        batch = self.points[segment.tower].batch
        return lambda: storages_text(members, copies, batch, segment.tally.letters)

    def _working(self, peak: Peak) -> Iterator[Line]:
        """The tensors of the layer that runs, by module and role."""
        segment = self.row[peak.segment]
        by_role: dict[tuple[Role, str], list[Storage]] = {}
        for module, storages in group(peak.instant.held).items():
            for storage in storages:
                by_role.setdefault((storage.role, module), []).append(storage)
        label = segment.copy(peak.before)
        for (role, module), members in by_role.items():
            yield self._line(f"working/{label}/{module}", CATEGORY[role], segment, tuple(members), 1)
