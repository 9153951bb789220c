"""The bill of one pipeline stage: its network, what is in flight, what lies beside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from everybyte.basics.record import Record
from everybyte.engines.megatron.block import TransformerLayer
from everybyte.engines.megatron.layout import MegatronLayout
from everybyte.engines.megatron.network import Recomputed, StagePlan, stage_plan
from everybyte.engines.megatron.sizes import Split
from everybyte.engines.megatron.style import Style
from everybyte.layers.network import Network, write
from everybyte.layers.network import Run as NamedRun
from everybyte.layers.size import Batch, Dim, Dims, Point
from everybyte.ledger.build import Line
from everybyte.ledger.entry import Phase
from everybyte.models.count import parts
from everybyte.rules.pipeline import Flight, flights, in_flight
from everybyte.rules.recipe import Recipe
from everybyte.rules.schedules import Plan
from everybyte.rules.stages import Stage
from everybyte.rules.step import Course, Waiting
from everybyte.rules.training import Training, course_of

ANY = Batch(1, 1, 1)
"""A batch for what does not depend on it."""


class Run(Record, frozen=True):
    """What all stages of a job have in common."""

    network: Network
    vocab: int
    split: Split
    style: Style
    recipe: Recipe
    layout: MegatronLayout
    full: Recomputed | None
    capability: str
    plan: Plan | None
    """None without a pipeline."""
    deferred: int = 0
    """Micro-batches for which the head's weight gradient waits."""


class StageTraining(Training, frozen=True):
    """A step of one stage."""

    passing: Network | None = None
    """The chunks of which some micro-batch is on its way; all of the network where that is None."""

    def totals(self) -> dict[Phase, int]:
        """Bytes of each phase without writing rows."""
        assert isinstance(self.layout, MegatronLayout)
        running, resting = _persistent(_Holds.of(self.network), replace(self.recipe, batch=ANY), self.layout.at_rest)
        beside = sum(line.bytes for line in self.extra)
        found: dict[Phase, int] = {phase: running + beside + summit.bytes for phase, summit in self.course.summits().items()}
        found["optimizer"] = found["between_steps"] = resting + beside + self.layout.left_bytes
        return found

    @property
    def course(self) -> Course:
        """The summits of the step."""
        return course_of(self.passing or self.network, self.recipe, self.layout, self.waiting)

    def script(self) -> Iterable[tuple[int, int]]:
        """The allocations in program order."""
        from everybyte.engines.megatron.script import MegatronScript
        from everybyte.rules.events import script

        return script(MegatronScript(self))


class _Holds(Record, frozen=True):
    """What a network's weights follow from, whatever its layers are called: stages in the middle of a pipeline are alike."""

    stem: Any
    runs: tuple[tuple[Any, int, Dims], ...]
    head: Any
    hidden: int
    tied: bool

    @classmethod
    def of(cls, network: Network) -> _Holds:
        """That of a stage."""
        return cls(network.stem, tuple((run.layer, run.count, run.dims) for run in network.runs), network.head, network.hidden, network.tied)

    def network(self) -> Network:
        """A network that holds the same."""
        runs = tuple(NamedRun(str(index), 0, count, layer, dims) for index, (layer, count, dims) in enumerate(self.runs))
        return Network("", "", self.hidden, 0, runs, self.stem, None, self.head, self.tied)


@lru_cache(maxsize=4096)
def _persistent(holds: _Holds, recipe: Recipe, layout: MegatronLayout) -> tuple[int, int]:
    """Bytes of weights, states and main gradients: while micro-batches run, and from the optimizer's step to the next."""
    network = holds.network()
    held = sum(line.bytes for line in (*layout.weights(network, recipe), *layout.states(network, recipe)))
    running, resting = (sum(line.bytes for line in lines(network, recipe)) for lines in (layout.accumulated, layout.gradients))
    return held + running, held + resting


def bill_of(run: Run, stage: Stage, extra: tuple[Line, ...]) -> StageTraining:
    """The course of a rank of this stage: of all passes of its schedule, the one that needs most."""
    candidates = [_training(run, stage, flight, extra) for flight in _busiest(run, stage)]
    return candidates[0] if len(candidates) == 1 else max(candidates, key=lambda bill: max(bill.totals().values()))


def _training(run: Run, stage: Stage, flight: Flight | None, extra: tuple[Line, ...]) -> StageTraining:
    count = len(stage.chunks)
    order = _all_chunks(stage) if flight is None else (*(c for c in range(count) if c != flight.chunk and flight.kept[c]), flight.chunk)
    whole = stage_plan(run.network, stage, run.split, run.style, run.vocab, run.full, _all_chunks(stage))
    found = stage_plan(run.network, stage, run.split, run.style, run.vocab, run.full, order)
    layout = run.layout
    if run.style.parked:
        layout = replace(layout, fetched=_parked(run, found))
    if stage.has_head and run.deferred:
        layout = replace(layout, deferred=run.deferred * (_logits(run) + layout.hidden))
    if flight is not None:
        received = len(stage.chunks) - stage.has_embedding
        layout = replace(layout, received=received, in_transit=(2 if len(stage.chunks) == 1 else 3) if received else 0)
    passing = None if found.network is whole.network else found.network
    return StageTraining(whole.network, run.recipe, run.capability, extra, layout, _waiting(found, flight), passing=passing)


def _parked(run: Run, found: StagePlan) -> int:
    """Bytes that a layer of this stage has in host memory at most."""
    layers = {part.layer for part in parts(found.network) if isinstance(part.layer, TransformerLayer)}
    whole = [_layer_kept(run, replace(layer, style=replace(layer.style, parked=()))) - _layer_kept(run, layer) for layer in layers]
    return max(whole, default=0)


def _layer_kept(run: Run, layer: TransformerLayer) -> int:
    dims = (layer.split.tokens, Dim("h", layer.sizes.hidden))
    return write(layer, run.recipe.setup, dims, run.recipe.stream, "none", False).tally.kept_size.at(Point(run.recipe.batch))


def _logits(run: Run) -> int:
    """Bytes of the logits of a micro-batch on this rank."""
    batch = run.recipe.batch
    return run.recipe.stream.nbytes(batch.b * batch.s * run.vocab // run.split.tp)


def _all_chunks(stage: Stage) -> tuple[int, ...]:
    """The chunks of a stage, that with the head last."""
    return tuple(sorted(range(len(stage.chunks)), key=lambda chunk: (chunk == stage.head, chunk)))


def _waiting(found: StagePlan, flight: Flight | None) -> Waiting:
    """Micro-batches beside the one that runs, by piece. The chunk that runs is the last of the row, and the row counts one micro-batch of each other
    chunk before it."""
    if flight is None:
        return ()
    counts = [kept if chunk == flight.chunk else kept - 1 for chunk, kept in enumerate(flight.kept)]
    return tuple((label, counts[chunk]) for chunk, labels in enumerate(found.labels) for label in labels)


def _busiest(run: Run, stage: Stage) -> Iterator[Flight | None]:
    """The passes that may need most: the one with most in flight, and the one that ends in the loss with most in flight."""
    if run.plan is None:
        yield None
        return
    sizes = _kept(run, stage) if len(stage.chunks) > 1 else (1,)
    first = in_flight(run.plan, stage.index, sizes)
    yield first
    if stage.has_head:
        with_loss = [flight for flight in flights(run.plan, stage.index) if flight.kind == "F" and flight.chunk == stage.head]
        best = max(with_loss, key=lambda flight: flight.weight(sizes, sizes), default=first)
        if best != first:
            yield best


@lru_cache(maxsize=4096)
def _kept(run: Run, stage: Stage) -> tuple[int, ...]:
    """Bytes that each chunk keeps of a micro-batch."""
    found = stage_plan(run.network, stage, run.split, run.style, run.vocab, run.full, _all_chunks(stage))
    course = course_of(found.network, run.recipe, run.layout)
    by_label: dict[str, int] = {}
    for segment, kept in zip(course.row, course.kept, strict=True):
        by_label[segment.part] = by_label.get(segment.part, 0) + segment.copies * kept
    return tuple(sum(by_label.get(label, 0) for label in labels) for labels in found.labels)
