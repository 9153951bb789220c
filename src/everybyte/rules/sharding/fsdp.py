"""Fully sharded data parallel: PyTorch's first form (one flat tensor a unit) and its second (each tensor by rows)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from everybyte.basics.dtypes import DType
from everybyte.basics.units import ceil_div
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Dim
from everybyte.layers.recording.tape import Parameter
from everybyte.ledger.build import Line, plain
from everybyte.rules.sharding.fsdp_units import NOTHING, ROOT, UnitSize, padded, unit_sizes
from everybyte.rules.sharding.fully_sharded import Around, Sharded, row_of_bytes
from everybyte.rules.step.layout import WHOLE, ShardEvent
from everybyte.rules.step.persistent_state import Group, parameter_tensors

if TYPE_CHECKING:
    from everybyte.rules.step.allocation_program import Program
    from everybyte.rules.step.recipe import GradientsLive, Recipe
    from everybyte.rules.step.timeline import StepTimeline
    from everybyte.rules.step.training import Training

FSDP1 = "pytorch torch/distributed/fsdp/_flat_param.py, _runtime_utils.py"
FSDP2 = "pytorch torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, _fsdp_collectives.py"
EXPERTS = ".experts."
"""What stands before the names of stacked experts."""
HELD = (
    "pytorch fsdp/_runtime_utils.py _register_post_backward_reshard_only_hook: a unit without trained weights has a hook on its inputs; under "
    "reentrant recomputation each is a leaf, which the hook keeps with its gradient until backward ends"
)


class Fsdp1(Sharded, frozen=True):
    """FSDP1: the weights of a unit lie in one flat tensor, padded to a multiple of the ranks; adapters that peft wraps are units of their own."""

    source: ClassVar[str] = FSDP1
    reduced: ClassVar[str] = "flat gradient"
    leaves: ClassVar[bool] = True

    prefetches: bool = True
    """The next unit of backward is gathered before the one that runs is done; not where reentrant recomputation runs whole units again, whose first
    forward registers no hooks."""
    prefetches_forward: bool = False
    """The next unit of forward is gathered before the one that runs is done."""
    gathers_once: bool = False
    """Units stay gathered from forward to backward (SHARD_GRAD_OP)."""
    reruns: bool = False
    """Recomputation runs whole units again, reentrantly: each is gathered for its second forward and once more for its backward."""
    adapters_apart: bool = True
    """Adapters are units of their own (peft's fsdp_auto_wrap_policy)."""
    holds_inputs: bool = False
    """Units without trained weights keep their inputs and the gradients of these: see HELD."""

    def local(self, whole: tuple[Group, ...], setup: Setup) -> tuple[Group, ...]:
        """One flat tensor for each unit and kind of weight, and what is not shared as it is."""
        found: list[Group] = []
        flat: dict[tuple[str, int, str], list[tuple[Group, Parameter]]] = {}
        for group in whole:
            kept: list[Parameter] = []
            for p in group.members:
                if not self.shards(p):
                    kept.append(p)
                    continue
                if p.packed:
                    kept += [row_of_bytes(p, size) for size in parameter_tensors(p, setup)[self.packed_tensors :]]
                name = "adapters" if p.adapter else ("packed" if p.packed else ("" if p.trainable else "frozen"))
                flat.setdefault((group.part, group.copies, name), []).append((group, p))
            if kept:
                found.append(group._replace(members=tuple(kept)))
        for (part, copies, name), members in ({} if self.on_host else flat).items():
            found.append(self._flat(part, copies, name, members, setup))
        return tuple(found)

    def _flat(self, part: str, copies: int, name: str, members: list[tuple[Group, Parameter]], setup: Setup) -> Group:
        first = self.own(members[0][1], setup)
        if first.packed:
            numel = sum(p.count * sum(parameter_tensors(p, setup)[: self.packed_tensors]) for _, p in members)
            first = row_of_bytes(first, numel)
        else:
            numel = sum(p.numel for _, p in members)
        share = ceil_div(numel, self.degree)
        known = (("P", numel), ("pad", share * self.degree - numel), ("D", self.degree))
        letter = "P/D" if not known[1][1] else "(P+pad)/D"
        row = replace(first, name=f"{name or 'weights'}.flat_param", dims=(Dim(letter, share),), count=1)
        return Group(f"{part}/{name}" if name else f"{part}/flat", copies, (row,), known)

    def writer(self, training: Training) -> Program:
        """By CUDA stream."""
        from everybyte.rules.sharding.fsdp1_program import Fsdp1Program

        return Fsdp1Program(training, self)

    def resident_after_forward(self, timeline: StepTimeline, index: int) -> int:
        """SHARD_GRAD_OP frees units after backward alone."""
        return self.unit(timeline, index).gathered if self.gathers_once else 0

    def around(self, timeline: StepTimeline, index: int) -> dict[ShardEvent, Around]:
        """The root, whole for the whole step; the unit that runs, whole; in backward the next one, where it is fetched ahead. When the gradients
        of a unit are done they are joined in one flat tensor before they are shared."""
        row = self.of_row(timeline)
        root, unit, ahead, behind = row.root.gathered, row.units[index], row.before[index], row.behind[index]
        late, early = (NOTHING if ahead is None or not fetches else row.units[ahead] for fetches in self._fetches(timeline))
        next_up = row.units[behind].gathered if behind is not None and self.prefetches_forward else 0
        return {
            "gather": Around(root, unit.gathered, cast=self.cast(timeline, unit)),
            "forward": Around(root, unit.gathered, next=next_up),
            "regather": Around(root, unit.gathered, next=early.gathered, cast=self.cast(timeline, early)),
            "backward": Around(root, unit.gathered, next=early.gathered),
            "reduce": Around(root, unit.gathered, next=late.gathered, reduce=timeline.measures[index].gradients),
        }

    def _fetches(self, timeline: StepTimeline) -> tuple[bool, bool]:
        """Whether backward has the unit that it needs next: when a layer is done, and before. Adapters that are units of their own lie between two
        blocks: the first of a block, whose backward comes late, fetches the block before."""
        late = timeline.recipe.setup.adapter is not None and self.adapters_apart and not self.ignores_adapters
        fetches = self.prefetches and not self.gathers_once
        return fetches, fetches and not late

    def retained_in_backward(self, timeline: StepTimeline, done: tuple[int, ...]) -> tuple[Line, ...]:
        """Under `holds_inputs`, the inputs of the layers that have gone back and their gradients, but for the gradient that the layer which runs
        now was given."""
        if not self.holds_inputs:
            return ()
        found, given = [], True
        for index, (segment, copies) in enumerate(zip(timeline.row, done, strict=True)):
            if not copies or segment.tally.outgoing is None or not self.unit(timeline, index).gathered:
                continue
            point = timeline.points[segment.tower]
            x, g, gradients = segment.tally.kept_size.at(point), segment.tally.outgoing.size.at(point), copies - given
            text = plain("copies·x + gradients·g", copies=copies, x=x, gradients=gradients, g=g)
            found.append(Line(f"held/{segment.label}", "autograd_detail", copies * x + gradients * g, text, HELD))
            given = False
        return tuple(found)


class Fsdp2(Sharded, frozen=True):
    """FSDP2 (fully_shard): each tensor is cut along its first dimension, the last rank's part padded to the size of the others."""

    source: ClassVar[str] = FSDP2
    reduced: ClassVar[str] = "reduce-scatter input"

    reduce: DType | None = None
    """Type in which gradients are summed; None: that in which they are made."""
    reshards: bool = True
    """Units are freed after forward and gathered again in backward."""
    kept_units: tuple[str, ...] = ()
    """Units that stay whole from forward to backward all the same."""
    keeps_last: bool = False
    """The last block stays whole from forward to backward."""
    expert_degree: int = 0
    """Ranks that share each expert, under expert parallelism; 0: as many as share other tensors."""

    @property
    def at_rest(self) -> Fsdp2:
        """Whenever units are gathered."""
        return replace(self, reshards=True, kept_units=(), keeps_last=False)

    def ways(self, parameter: Parameter) -> int:
        """How many ranks share a parameter."""
        return self.expert_degree if self.expert_degree and EXPERTS in f".{parameter.name}" else self.degree

    def local(self, whole: tuple[Group, ...], setup: Setup) -> tuple[Group, ...]:
        """The same tensors with ceil(rows/D) rows."""
        found = (g._replace(members=self._held(g.members, setup), letters=(*g.letters, ("D", self.degree))) for g in whole)
        return tuple(g for g in found if g.members)

    def _held(self, members: tuple[Parameter, ...], setup: Setup) -> tuple[Parameter, ...]:
        """Of the members of a group, what the device holds all the time."""
        if not self.on_host:
            return tuple(self._rows(p, setup) for p in members)
        rest = ((row_of_bytes(p, sum(parameter_tensors(p, setup)[1:])) if p.packed else p) for p in members if p.packed or not self.shards(p))
        return tuple(p for p in rest if p.numel)

    def _rows(self, p: Parameter, setup: Setup) -> Parameter:
        if not self.shards(p) or not p.dims:
            return p
        if p.packed:
            first, *rest = parameter_tensors(p, setup)
            return row_of_bytes(p, ceil_div(first, self.degree) + sum(rest))
        ways = self.ways(p)
        # experts are cut along their own rows where there are more ranks than experts
        axis = 1 if ways > p.dims[0].size and EXPERTS in f".{p.name}" else 0
        rows = p.dims[axis]
        share = ceil_div(rows.size, ways)
        letter = f"{rows.letter}/D" if share * ways == rows.size else f"{rows.letter}_D"
        return replace(self.own(p, setup), dims=(*p.dims[:axis], Dim(letter, share), *p.dims[axis + 1 :]))

    def summed(self, recipe: Recipe) -> DType:
        """As the setting says, else the type in which they are made."""
        return self.reduce or super().summed(recipe)

    def sizes(self, network: Network, setup: Setup) -> dict[str, UnitSize]:
        """The units, whole, each tensor padded to a multiple of the ranks."""
        return unit_sizes(network, setup, self.units, self.packed_tensors, self.ignores_adapters, self.degree)

    def lives(self, recipe: Recipe) -> GradientsLive:
        """Under no_sync autograd adds each gradient to the earlier one, unless that is of another type."""
        return "always" if self.unsharded and self.reduce in (None, recipe.setup.weights) else "backward"

    def whole(self, part: str) -> bool:
        """Whether gradients of a piece of the network stay whole from one micro-batch to the next."""
        return self.unsharded

    def accumulated(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """Under no_sync gradients stay whole, in the type of the sum (FSDPParam.to_accumulated_grad_if_needed)."""
        return WHOLE.gradients(network, replace(recipe, gradient=self.reduce)) if self.unsharded else self.gradients(network, recipe)

    def writer(self, training: Training) -> Program:
        """By CUDA stream."""
        from everybyte.rules.sharding.fsdp2_program import Fsdp2Program

        return Fsdp2Program(training, self)

    def resident_after_forward(self, timeline: StepTimeline, index: int) -> int:
        """Units that are not freed after forward are whole until their own backward is done."""
        is_kept = not self.reshards or self.units.of(timeline.row[index].part) in self.kept_units
        return self.unit(timeline, index).gathered if is_kept or (self.keeps_last and index == self._last_block(timeline)) else 0

    def _last_block(self, timeline: StepTimeline) -> int:
        names = [self.units.of(segment.part) for segment in timeline.row]
        return max((i for i, name in enumerate(names) if name != ROOT and name not in self.units.apart), default=-1)

    def around(self, timeline: StepTimeline, index: int) -> dict[ShardEvent, Around]:
        """The root, whole until its gradients are shared at the end of backward, and what FSDPParamGroup holds of the units around a layer.

        Forward: a unit is copied out of the buffer in which it was gathered, which is freed when the next unit has been copied out
        (wait_for_unshard holds the earlier result until then). Backward: the unit until its backward is done, the buffer of the unit that backward
        needs next, the input of the last reduce-scatter until the next.
        """
        row = self.of_row(timeline)
        root, unit, before, behind = row.root.gathered, row.units[index].gathered, row.before[index], row.behind[index]
        earlier = (row.root if before is None else row.units[before]).gathered
        ahead = NOTHING if before is None or timeline.stays[before] else row.units[before]
        fetched = self._buffer(ahead.gathered)
        shared = 0 if behind is None else self._reduce_input(timeline, behind)
        reduce = Around(root, next=fetched, reduce=self._reduce_input(timeline, index))
        if index == 0 and self.units.of(timeline.row[0].part) == ROOT:
            reduce = Around(reduce=0 if self.unsharded else self.summed(timeline.recipe).nbytes(row.root.trained))
        return {
            "gather": Around(root, unit, self._buffer(unit or earlier), self._buffer(earlier) if unit else 0),
            "forward": Around(root, unit, self._buffer(unit or earlier)),
            "regather": Around(root, unit, next=fetched, cast=self._buffer(self.cast(timeline, ahead)), reduce=shared),
            "backward": Around(root, unit, next=fetched, reduce=shared),
            "reduce": reduce,
        }

    def _buffer(self, nbytes: int) -> int:
        """Bytes of the buffer of an all-gather; one rank copies its shard at once."""
        return nbytes if self.degree > 1 else 0

    def made(self, timeline: StepTimeline, index: int) -> int:
        """Padded numbers of the unit of a segment that have a gradient: of adapters that no token uses there is none."""
        return min(self.unit(timeline, index).trained, sum(padded(s.dims, self.degree) for s in timeline.row[index].tally.gradients))

    def _reduce_input(self, timeline: StepTimeline, index: int) -> int:
        """All gradients of a unit in the type of the sum. Under no_sync it takes the place of gradients that were there before."""
        return 0 if self.unsharded else self.summed(timeline.recipe).nbytes(self.made(timeline, index))
