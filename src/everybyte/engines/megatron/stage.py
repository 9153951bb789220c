"""The bill of one pipeline stage: its network, what is in flight, what lies beside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from msgspec.structs import replace

from everybyte.basics.dtypes import DType
from everybyte.basics.record import Record
from everybyte.engines.megatron.buffers import buffers
from everybyte.engines.megatron.graphs import captured, static_buffers
from everybyte.engines.megatron.layers.block import TransformerLayer
from everybyte.engines.megatron.layers.linear import offloaded_size
from everybyte.engines.megatron.layout import MegatronLayout
from everybyte.engines.megatron.network import StagePlan
from everybyte.engines.megatron.run import Run
from everybyte.layers.network import Network
from everybyte.layers.network import Run as NamedRun
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Dim, Size
from everybyte.layers.recording.tape import Tape
from everybyte.ledger.build import Line
from everybyte.ledger.entry import Phase
from everybyte.ledger.ledger import Ledger
from everybyte.models.count import parts
from everybyte.rules.accounting.canonical import numbered, unnamed
from everybyte.rules.parallel.pipeline import Flight, flights, in_flight
from everybyte.rules.parallel.stages import Stage
from everybyte.rules.step.layout import Layout
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.row import measured, point_of
from everybyte.rules.step.segments import segments
from everybyte.rules.step.timeline import Peak, StepTimeline, Waiting
from everybyte.rules.step.training import Training, timeline_of


class StageTraining(Training, frozen=True):
    """A step of one stage."""

    passing: Network | None = None
    """The chunks of which some micro-batch is on its way; all of the network where that is None."""
    captured: Network | None = None
    """What is captured in CUDA graphs before the first step."""
    later: tuple[Line, ...] = ()
    """Rows of graphs that are captured after some steps, of which these are the highest."""

    def totals(self) -> dict[Phase, int]:
        """Bytes of each phase without writing rows."""
        layout, recipe = self.layout, self.recipe
        assert isinstance(layout, MegatronLayout)
        running, resting = _resting_bytes(self._alike(self.network), recipe.timeless, layout.at_rest)
        beside = sum(line.bytes for line in self.extra)
        running += beside + self.waiting_bytes() + layout.transit_bytes
        timeline = timeline_of(self._alike(self.passing or self.network), recipe, layout.in_step)
        found: dict[Phase, int] = {phase: running + height for phase, height in timeline.heights().items()}
        found["optimizer"] = found["between_steps"] = resting + beside + layout.left_bytes + sum(line.bytes for line in self.later)
        if self.captured is not None:
            found["init"] = sum(line.bytes for line in self._capturing())
        return found

    def phases(self) -> dict[Phase, Iterable[Line]]:
        """The rows of each phase of a steady step, and of the capture before the first."""
        found = super().phases()
        for phase in ("optimizer", "between_steps"):
            found[phase] = [*found[phase], *self.later]
        return found if self.captured is None else {"init": self._capturing(), **found}

    def _rests(self) -> tuple[Line, ...]:
        """What there is beside the main gradients from the optimizer's step to the next."""
        running = {line.id for line in self.accumulated()}
        return (*(line for line in self.gradients() if line.id not in running), *self.later)

    def _capture(self) -> tuple[StepTimeline, Peak]:
        assert self.captured is not None
        timeline = timeline_of(self.captured, self.recipe, MegatronLayout(), self.waiting)
        return timeline, max(timeline.peaks().values(), key=lambda found: found.bytes)

    @property
    def pool_bytes(self) -> int:
        """Bytes of the graphs' private pool, which nobody else can use."""
        return 0 if self.captured is None else self._capture()[1].bytes

    def _capturing(self) -> list[Line]:
        """What is there while graphs are captured: all that rests on the rank but moments, and the schedule's passes through what is captured."""
        network, recipe, layout = self.network, self.recipe, self.layout
        timeline, peak = self._capture()
        states = (line for line in layout.states(network, recipe) if not line.id.startswith("optimizer"))
        return [*layout.weights(network, recipe), *states, *layout.accumulated(network, recipe), *self.extra, *timeline.lines(peak)]

    def _alike(self, network: Network) -> Network:
        """The network that stands for all which are alike; equal blocks in one run, unless what is beside them depends on how many come behind."""
        return numbered(network)[0] if self.layout.leaves else unnamed(network)

    def waiting_bytes(self) -> int:
        """What is kept of the micro-batches beside the one that runs."""
        if not self.waiting:
            return 0
        kept = _kept(self.passing or self.network, self.recipe, self.layout)
        return sum(micro_batches * kept.get(label, 0) for label, micro_batches in self.waiting)

    @property
    def timeline(self) -> StepTimeline:
        """The peaks of the step."""
        return timeline_of(self.passing or self.network, self.recipe, self.layout, self.waiting)

    def script(self) -> Iterable[tuple[int, int]]:
        """The allocations in program order."""
        from everybyte.engines.megatron.program import MegatronProgram  # needed by those alone who ask for reserved bytes
        from everybyte.rules.step.allocation_program import script

        return script(MegatronProgram(self, self.pool_bytes, self._rests()))


@lru_cache(maxsize=16384)
def _resting_bytes(network: Network, recipe: Recipe, layout: MegatronLayout) -> tuple[int, int]:
    return layout.resting_bytes(network, recipe)


class StageBill(Record, frozen=True):
    """The step of a rank of a stage: of all passes of its schedule, the one that needs most. It is worked out when somebody asks."""

    run: Run
    stage: Stage

    @property
    def network(self) -> Network:
        """All chunks of the stage."""
        return self.run.part(self.stage).network

    def totals(self) -> dict[Phase, int]:
        """Allocated bytes at the highest instant of each phase."""
        return max((training.totals() for training in _passes(self.run, self.stage)), key=lambda totals: max(totals.values()))

    def ledger(self) -> Ledger:
        """All rows."""
        return _busiest(self).ledger()

    def script(self) -> Iterable[tuple[int, int]]:
        """The allocations in program order."""
        return _busiest(self).script()


@lru_cache(maxsize=256)
def _busiest(bill: StageBill) -> StageTraining:
    """The pass that needs most."""
    return max(_passes(bill.run, bill.stage), key=lambda training: max(training.totals().values()))


def _passes(run: Run, stage: Stage) -> list[StageTraining]:
    """The passes that may need most."""
    whole = run.part(stage)
    layout = run.layout
    if stage.has_head and run.deferred:
        layout = replace(layout, deferred=run.deferred * (_logits(run) + layout.hidden))
    if run.plan is not None and (received := len(stage.chunks) - stage.has_embedding):
        layout = replace(layout, received=received, in_transit=2 if len(stage.chunks) == 1 else 3)
    inputs, starts = tuple(static_buffers(run, stage)), run.style.replayed
    beside, later = (*run.workspaces, *buffers(run, stage), *(inputs if starts else ())), () if starts else inputs
    found = []
    for flight in _flights(run, stage, whole):
        part = whole if flight is None else run.part(stage, _order(stage, flight))
        network = part.network
        if run.style.offloaded:
            prefetches = flight is not None and any(flight.kept)
            layout = replace(layout, fetched=_parked(run, part), prefetches=prefetches)
            network = network if prefetches else _last_stays(network)
        passing = None if network is whole.network else network
        graphs = captured(part.network) if starts else None
        waiting = _waiting(part, flight)
        found.append(StageTraining(whole.network, run.recipe, run.capability, beside, layout, waiting, passing=passing, captured=graphs, later=later))
    return found


def _order(stage: Stage, flight: Flight) -> tuple[int, ...]:
    """The chunks of which some micro-batch is on its way, the one that runs last."""
    return (*(c for c in range(len(stage.chunks)) if c != flight.chunk and flight.kept[c]), flight.chunk)


def _last_stays(network: Network) -> Network:
    """A stage whose micro-batch goes back as soon as it has gone forward: nothing of the last layer is copied to host memory
    (pipeline_parallel/fine_grained_activation_offload.py should_bulk_offload)."""
    runs = list(network.runs)
    place = next((place for place in reversed(range(len(runs))) if isinstance(runs[place].layer, TransformerLayer)), None)
    if place is None:
        return network
    last = runs[place]
    stays = NamedRun(last.prefix, last.first + last.count - 1, 1, replace(last.layer, style=replace(last.layer.style, offloaded=())), last.dims)
    others = [replace(last, count=last.count - 1)] if last.count > 1 else []
    return replace(network, runs=(*runs[:place], *others, stays, *runs[place + 1 :]))


def _parked(run: Run, found: StagePlan) -> int:
    """Bytes that a layer of this stage has in host memory at most."""
    layers = {part.layer for part in parts(found.network) if isinstance(part.layer, TransformerLayer)}
    return max((_layer_parked(layer, run.recipe.setup, run.recipe.stream).at(point_of(run.recipe.batch)) for layer in layers), default=0)


@lru_cache(maxsize=1024)
def _layer_parked(layer: TransformerLayer, setup: Setup, stream: DType) -> Size:
    tape = Tape(setup)
    layer.forward(tape, tape.given("hidden states", (layer.split.tokens, Dim("h", layer.sizes.hidden)), stream, grad=True, persistent=False))
    return offloaded_size(tape)


def _logits(run: Run) -> int:
    """Bytes of the logits of a micro-batch on this rank."""
    batch = run.recipe.batch
    return run.recipe.stream.nbytes(batch.b * batch.s * run.vocab // run.split.tp)


def _waiting(found: StagePlan, flight: Flight | None) -> Waiting:
    """Micro-batches beside the one that runs, by piece. The chunk that runs is the last of the row, and the row counts one micro-batch of each other
    chunk before it."""
    if flight is None:
        return ()
    counts = [kept if chunk == flight.chunk else max(kept - 1, 0) for chunk, kept in enumerate(flight.kept)]
    return tuple((label, counts[chunk]) for chunk, labels in enumerate(found.labels) if counts[chunk] for label in labels)


def _flights(run: Run, stage: Stage, whole: StagePlan) -> Iterator[Flight | None]:
    """What is in flight while one of the passes that may need most runs: the one with most in flight, the one that ends in the loss with most, and,
    where a layer needs more while it runs than it keeps, as with kept tensors in host memory, the one with most that does not."""
    if run.plan is None:
        yield None
        return
    sizes = _kept_by_chunk(run, whole) if len(stage.chunks) > 1 else (1,)
    first = in_flight(run.plan, stage.index, sizes)
    yield first
    if not stage.has_head:
        return
    found = {first}
    for ends in (True, False) if run.style.offloaded else (True,):
        some = [flight for flight in flights(run.plan, stage.index) if flight.kind == "F" and (flight.chunk == stage.head) == ends]
        best = max(some, key=lambda flight: flight.weight(sizes, sizes), default=first)
        if best not in found:
            found.add(best)
            yield best


def _kept_by_chunk(run: Run, whole: StagePlan) -> tuple[int, ...]:
    kept = _kept(whole.network, run.recipe, run.layout)
    return tuple(sum(kept.get(label, 0) for label in labels) for labels in whole.labels)


@lru_cache(maxsize=256)
def _kept(network: Network, recipe: Recipe, layout: Layout) -> dict[str, int]:
    """Bytes that the copies of each piece of a network keep of a micro-batch. Megatron's layers hand hidden states on as they are given them, so that
    equal layers keep the same wherever they stand."""
    alike = unnamed(network)
    row = segments(alike, recipe.setup, recipe.recompute, recipe.stream, layout.lives(recipe))
    of_part = {segment.part: measured(segment.tally, recipe.batch).kept for segment in row}
    of_layer = {part.layer: of_part[part.label] for part in parts(alike)}
    return {part.label: part.copies * of_layer[part.layer] for part in parts(network)}
