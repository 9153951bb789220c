"""The readings of a step's program that the ledger needs: the highest instant of each phase, and the rows of what lives then.

In forward a segment runs on top of what all earlier ones keep; in backward on top of what the earlier ones keep and of the gradients that the later ones
made. Around them the layout makes and frees what its ranks gather and share. All rounds of a loop add the same, so that its highest instant is in its first
or in its last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from everybyte.layers.network import Network
from everybyte.layers.recording.replay import Instant
from everybyte.layers.recording.size import TOKENS
from everybyte.layers.recording.tape import Role, Storage
from everybyte.ledger.build import Line, Text, plain
from everybyte.ledger.entry import Category, Phase
from everybyte.rules.accounting.formula_text import group, storages_text
from everybyte.rules.step.layout import WHOLE, Layout
from everybyte.rules.step.program import Fetch, Free, Hold, Leave, Make, Merge, Moves, Op, Pass, Return, Run, Section, ShardEvent, Spend
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.row import StepRow, highest, instant_of, own, point_of
from everybyte.rules.step.segments import Segment

AUTOGRAD = "operations of the layer in the order of its forward; what autograd keeps of each (pytorch tools/autograd/derivatives.yaml)"
PASSED = "pytorch torch/csrc/autograd/input_buffer.cpp: the gradient of what several layers read (encoder states) is summed until its maker goes back"
HELD = (
    "pytorch fsdp/_runtime_utils.py _register_post_backward_reshard_only_hook: a unit without trained weights has a hook on its inputs; under "
    "reentrant recomputation each is a leaf, which the hook keeps with its gradient until backward ends"
)
CATEGORY: dict[Role, Category] = {"activation": "activation", "temporary": "temporary", "autograd_detail": "autograd_detail", "gradient": "gradient"}


class Peak(NamedTuple):
    """The highest instant of some sections: bytes of the step's own tensors and of what the layout has beside them, and where it is."""

    bytes: int
    section: int
    """Which of the sections; and which segment that is."""
    segment: int
    loop: int = 0
    round: int = 0
    at: int = -1
    """Which of the loops of the section, which round of it, and which of its operations; -1: none."""
    before: int = 0
    """How many copies of that segment ran before."""
    moment: ShardEvent = "forward"

    @property
    def backward(self) -> bool:
        """Whether forward is done."""
        return self.moment not in ("gather", "forward")


Waiting = tuple[tuple[str, int], ...]
"""(piece of the network, micro-batches): kept tensors that are alive beside those of the micro-batch that runs, in a pipeline."""


class Written(NamedTuple):
    """The program of a step, which is the same for all batches."""

    accumulated: tuple[Op, ...]
    """What earlier micro-batches left, where the layout makes its place."""
    forward: tuple[Section, ...]
    backward: tuple[Section, ...]
    moves: Moves


@lru_cache(maxsize=4096)
def written(network: Network, recipe: Recipe, layout: Layout, *, syncs: bool = True) -> Written:
    """What a layout writes for a step. `recipe` is timeless."""
    moves = layout.moves(StepRow.of(network, recipe, by_unit=layout.by_unit, lives=layout.lives(recipe)))
    moves.syncs = syncs
    accumulated = tuple(moves.accumulated()) if syncs else ()
    return Written(accumulated, *moves.program(), moves)


class StepTimeline(StepRow):
    """A step of one recipe on one rank: the peaks of its phases."""

    def __init__(self, network: Network, recipe: Recipe, layout: Layout = WHOLE, waiting: Waiting = ()) -> None:
        # micro-batches before the last, which find all gradients of earlier ones, are the highest
        self.program = written(network, recipe.timeless, layout, syncs=not layout.unshared)
        self.layout = layout
        super().__init__(network, recipe, self.program.moves.step.row)
        self.returns = self.program.moves.step.returns
        self.sections = (*self.program.forward, *self.program.backward)
        in_flight = dict(waiting)
        self.waiting = [in_flight.get(s.part, 0) for s in self.row]
        self.waiting_bytes = sum(n * s.copies * m.kept for n, s, m in zip(self.waiting, self.row, self.measures, strict=True)) if waiting else 0
        self._flow = 0
        self._peaks = self._read()

    # -- reading ------------------------------------------------------------------------------------------------------------
    def _read(self) -> list[Peak]:
        """The peak of each section."""
        level, found = self.waiting_bytes, []
        forwards = len(self.program.forward)
        for place, section in enumerate(self.sections):
            if place == forwards:
                self.paused_bytes = level - sum(s.copies * m.cached for s, m in zip(self.row, self.measures, strict=True) if s.label != "head")
                level -= sum(s.copies * m.cached for s, m in zip(self.row, self.measures, strict=True))
            measure = self.measures[section.segment]
            self._flow = measure.incoming if section.backward else measure.start
            level, best = self._section(place, section, level)
            found.append(best)
        return found

    def _section(self, place: int, section: Section, level: int) -> tuple[int, Peak]:
        """(level behind a section, its highest instant)."""
        best, where = 0, (0, 0, -1)
        for number, loop in enumerate(section.loops):
            end, high, at = self._fold(loop.body, level)
            grows = (loop.copies - 1) * (end - level)
            high += max(grows, 0)
            if high > best:
                best, where = high, (number, loop.copies - 1 if grows > 0 else 0, at)
            level = end + grows
        return level, Peak(best, place, section.segment, *where, moment="backward" if section.backward else "forward")

    def _placed(self, peak: Peak) -> Peak:
        """The same with how many copies ran before, and what happens then."""
        section = self.sections[peak.section]
        body = section.loops[peak.loop].body if section.loops else ()
        run = next((place for place, op in enumerate(body) if isinstance(op, Run)), -1)
        ran = sum(loop.copies for loop in section.loops[: peak.loop]) + peak.round
        before = min(ran, self.row[section.segment].copies - 1)
        if section.backward:
            moment: ShardEvent = "backward" if peak.at == run else ("regather" if peak.at < run else "reduce")
            return peak._replace(before=self.row[section.segment].copies - 1 - before, moment=moment)
        return peak._replace(before=before, moment="gather" if peak.at < run else "forward")

    def _fold(self, body: tuple[Op, ...], level: int) -> tuple[int, int, int]:
        """(level behind some operations, highest level in them, at which that is)."""
        best, place = 0, -1
        for at, op in enumerate(body):
            high = 0
            if isinstance(op, Make):
                level += op.bytes
                high = level + self._flow
            elif isinstance(op, Free):
                level -= op.bytes
            elif isinstance(op, Run):
                measure = self.measures[op.segment]
                high = level + (measure.backward - measure.kept if op.backward else measure.forward)
                level += measure.lingering + self.made(op.segment) - measure.kept if op.backward else measure.kept + measure.cached
                self._flow = (measure.outgoing + (measure.own if self.returns[op.segment] else 0)) if op.backward else measure.start
            else:
                level += self._adds(op)
            if high > best:
                best, place = high, at
        return level, best, place

    def _adds(self, op: Op) -> int:
        """What one of the other operations adds to the level."""
        if isinstance(op, (Pass, Merge)):
            return self._passed(op.segment, op.what) * (1 if isinstance(op, Pass) else -1)
        if isinstance(op, (Leave, Fetch)):
            return self.measures[op.segment].kept * (1 if isinstance(op, Fetch) else -1)
        if isinstance(op, Hold):
            return self.measures[op.segment].start + (self.measures[op.segment].incoming if op.gradient else 0)
        if isinstance(op, Return):
            self._flow = self.measures[op.segment].outgoing
        return -self.made(op.segment) if isinstance(op, Spend) else 0

    def _passed(self, index: int, what: str) -> int:
        segment = self.row[index]
        return sum(s.size.at(self.points[segment.tower]) for s in segment.tally.passed if s.what == what)

    def peaks(self) -> dict[Phase, Peak]:
        """The highest instants of forward, loss and backward."""
        head = len(self.row) - 1 if self.row[-1].label == "head" else len(self.row)
        found: dict[Phase, Peak] = {"forward": self.forward(0, head)}
        if head < len(self.row):
            found["loss"] = max(self.forward(head, head + 1), self.backward(head, head + 1), key=lambda s: s.bytes)
        found["backward"] = self.backward(0, head)
        return found

    def heights(self) -> dict[Phase, int]:
        """The bytes of `peaks`, for those who do not ask what lives then."""
        head = len(self.row) - 1 if self.row[-1].label == "head" else len(self.row)
        found: dict[Phase, int] = dict.fromkeys(("forward", "loss", "backward") if head < len(self.row) else ("forward", "backward"), 0)
        for peak in self._peaks:
            phase: Phase = "loss" if peak.segment == head else "backward" if self.sections[peak.section].backward else "forward"
            found[phase] = max(found[phase], peak.bytes)
        return found

    def forward(self, first: int, last: int) -> Peak:
        """The highest instant of forward over segments first..last (exclusive)."""
        return self._highest(first, last, backward=False)

    def backward(self, first: int, last: int) -> Peak:
        """The highest instant of backward over segments first..last (exclusive)."""
        return self._highest(first, last, backward=True)

    def _highest(self, first: int, last: int, *, backward: bool) -> Peak:
        chosen = [peak for peak in self._peaks if first <= peak.segment < last and self.sections[peak.section].backward == backward]
        chosen.sort(key=lambda peak: peak.segment)
        return self._placed(max(chosen, key=lambda peak: peak.bytes))

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

    # -- what lives at a peak -----------------------------------------------------------------------------------------------
    def _done(self, peak: Peak) -> Iterator[tuple[int, Op]]:
        """(times, operation) of all that has been done at a peak, the operation itself included."""
        loops = [loop for section in self.sections[: peak.section] for loop in section.loops]
        own_loops = self.sections[peak.section].loops
        for loop in (*loops, *own_loops[: peak.loop]):
            yield from ((loop.copies, op) for op in loop.body)
        last = own_loops[peak.loop].body
        yield from ((peak.round, op) for op in last if peak.round)
        yield from ((1, op) for op in last[: peak.at + 1])

    def _beside(self, peak: Peak) -> dict[str, tuple[int, int]]:
        """Of each slot that holds something at a peak, how many tensors and their bytes together."""
        found: dict[str, tuple[int, int]] = {}
        for times, op in self._done(peak):
            if isinstance(op, (Make, Free)):
                sign = times if isinstance(op, Make) else -times
                count, size = found.get(op.slot, (0, 0))
                found[op.slot] = count + sign, size + sign * op.bytes
        return {slot: held for slot, held in found.items() if held[1]}

    def instant(self, peak: Peak) -> Instant:
        """The tensors of the layer that runs at a peak, or of which one copy has just run or is about to."""
        segment = self.row[peak.segment]
        tally, point = segment.tally, self.points[segment.tower]
        if peak.moment in ("forward", "backward"):
            instants = tally.backward if peak.backward else tally.forward
            return highest(instants, point) if instants else instant_of()
        if peak.moment == "gather":
            return instant_of(tally.start)
        if peak.moment == "regather":
            return instant_of(*tally.kept, tally.incoming)
        made = () if self._is_spent(peak) else tally.gradients
        return instant_of(*made, *(own(tally) if self.returns[peak.segment] else ()), tally.outgoing)

    def _is_spent(self, peak: Peak) -> bool:
        """Whether the gradients of the copy that has just gone back are used up already."""
        body = self.sections[peak.section].loops[peak.loop].body
        return any(isinstance(op, Spend) and op.segment == peak.segment for op in body[: peak.at + 1])

    def images(self) -> Iterator[Line]:
        """Images of the batch, of the main network or of its towers: they live outside the step."""
        for segment in self.row:
            given = segment.tally.start
            if given.persistent and not given.outside and given.dims not in ((), (TOKENS,)):
                size = given.size.at(self.points[segment.tower])
                yield Line(f"input/{segment.tower or 'images'}", "input", size, self._text(segment, (given,), 1), "images of the last batch")

    def lines(self, peak: Peak) -> Iterator[Line]:
        """The rows at a peak: of the step's own tensors, and of what the layout has beside them."""
        present = dict(self._present(peak.segment, peak.before, backward=peak.backward))
        made = self._made(peak) if peak.backward else {}
        for index, segment in enumerate(self.row):
            if ran := present.get(index, 0):
                yield from self._stored(segment, segment.tally.kept, ran, "activations")
                if not peak.backward:
                    yield from self._stored(segment, segment.tally.cached, ran, "autocast")
            undone = segment.copies if index > peak.segment else (segment.copies - 1 - peak.before if index == peak.segment else 0)
            if found := made.get(index):
                yield self._made_gradients(segment, found)
            if peak.backward and undone:
                yield from self._stored(segment, segment.tally.lingering, undone, "lingering")
            if self.waiting[index]:
                yield from self._stored(segment, segment.tally.kept, segment.copies * self.waiting[index], "in flight")
        yield from self._handed(peak)
        yield from self.program.moves.rows(peak.segment, peak.moment, peak.before, self._beside(peak))
        yield from self._working(peak)

    def _made(self, peak: Peak) -> dict[int, tuple[int, int]]:
        """Of each segment, (copies, bytes) of gradients that stay as they were made, but for those in `instant`."""
        found: dict[int, int] = {}
        for times, op in self._done(peak):
            if isinstance(op, (Run, Spend)) and (isinstance(op, Spend) or op.backward):
                found[op.segment] = found.get(op.segment, 0) + (times if isinstance(op, Run) else -times)
        if peak.moment in ("backward", "reduce") and not self._is_spent(peak):
            found[peak.segment] = found.get(peak.segment, 0) - 1
        return {index: (copies, copies * self.made(index)) for index, copies in found.items() if copies > 0 and self.made(index)}

    def _handed(self, peak: Peak) -> Iterator[Line]:
        """Rows of gradients that wait for other parts of the network, and of what hooks hold of layers that have gone back."""
        passed: dict[tuple[int, str], int] = {}
        held: dict[int, list[int]] = {}
        for times, op in self._done(peak):
            if isinstance(op, (Pass, Merge)):
                passed[op.segment, op.what] = passed.get((op.segment, op.what), 0) + (1 if isinstance(op, Pass) else -1)
            elif isinstance(op, Hold):
                counts = held.setdefault(op.segment, [0, 0])
                counts[0] += times
                counts[1] += times * op.gradient
        if size := sum(self._passed(index, what) for (index, what), waits in passed.items() if waits):
            yield Line("gradients/passed on", "autograd_detail", size, plain("g", g=size), PASSED, "formula")
        for index, (copies, gradients) in held.items():
            x, g = self.measures[index].start, self.measures[index].incoming
            text = plain("copies·x + gradients·g", copies=copies, x=x, gradients=gradients, g=g)
            yield Line(f"held/{self.row[index].label}", "autograd_detail", copies * x + gradients * g, text, HELD)

    def held(self) -> Iterator[Line]:
        """What is there between forward and backward: kept tensors, and of the head what the function that works out the loss still has."""
        last = len(self.program.forward) - 1
        end = Peak(0, last, last, loop=len(self.sections[last].loops) - 1, at=len(self.sections[last].loops[-1].body) - 1)
        for index, segment in enumerate(self.row):
            if not segment.offloaded:
                yield from self._stored(segment, segment.tally.kept, segment.copies, "activations")
            if segment.label == "head":
                yield from self._stored(segment, segment.tally.cached, segment.copies, "logits")
            if self.waiting[index]:
                yield from self._stored(segment, segment.tally.kept, segment.copies * self.waiting[index], "in flight")
        yield from self.program.moves.rows(last, "forward", 0, self._beside(end))

    def outliving_bytes(self) -> int:
        """The sum of `outliving`."""
        return sum(s.copies * m.lingering for s, m in zip(self.row, self.measures, strict=True)) if self.recipe.graph_outlives else 0

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
        uneven = point_of(self.recipe.batch._replace(is_uneven=True))
        worst = copies * sum(s.size.at(uneven) for s in members)
        return line._replace(basis="assumed", low=size, high=worst) if worst > size else line

    def _made_gradients(self, segment: Segment, made: tuple[int, int]) -> Line:
        copies, size = made
        text = self._text(segment, segment.tally.gradients, copies)
        return Line(f"gradients/{segment.label}", "gradient", size, text, "gradients of the layers whose backward has run")

    def _text(self, segment: Segment, members: tuple[Storage, ...], copies: int) -> Callable[[], Text]:
        batch = self.points[segment.tower].batch
        return lambda: storages_text(members, copies, batch, segment.tally.letters)

    def _working(self, peak: Peak) -> Iterator[Line]:
        """The tensors of the layer that runs, by module and role."""
        segment = self.row[peak.segment]
        by_role: dict[tuple[Role, str], list[Storage]] = {}
        for module, storages in group(self.instant(peak).held).items():
            for storage in storages:
                by_role.setdefault((storage.role, module), []).append(storage)
        label = segment.copy(peak.before)
        for (role, module), members in by_role.items():
            yield self._line(f"working/{label}/{module}", CATEGORY[role], segment, tuple(members), 1)
