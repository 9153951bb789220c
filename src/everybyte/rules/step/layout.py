"""How weights, gradients and optimizer states lie on one rank, and what moves between ranks while the step runs.

A layout is a value that an engine chooses. The base class is one GPU: everything whole, nothing moves. Shardings (`fsdp1`, `fsdp2`, `zero`,
Megatron's) say what differs: which part of each tensor this rank holds (`local`), what it has beside the tensors of the layer that runs
(`beside`: gathered parameters, buckets), what a layer's backward leaves behind, what lives all the time and what the optimizer's step adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from everybyte.basics.dtypes import DType
from everybyte.basics.record import Record
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.tape import Parameter
from everybyte.ledger.build import Line
from everybyte.models.count import tensors
from everybyte.rules.step.persistent_state import Group, Trained, gradient_lines, state_lines, trained, weight_lines

if TYPE_CHECKING:
    from everybyte.rules.step.allocation_program import Program
    from everybyte.rules.step.recipe import GradientsLive, Recipe
    from everybyte.rules.step.timeline import StepTimeline
    from everybyte.rules.step.training import Training

ShardEvent = Literal["gather", "forward", "regather", "backward", "reduce"]
"""A layer's weights are being gathered; it runs forward. In backward: those of the next layer are being gathered; it runs backward; its gradients
are on their way to the other ranks."""
SHARD_EVENTS: tuple[ShardEvent, ...] = ("gather", "forward", "regather", "backward", "reduce")
ALONE: tuple[ShardEvent, ...] = ("forward", "backward")
"""The moments of a layer whose weights are there all the time."""


class Layout(Record, frozen=True):
    """One GPU: everything whole. Each method may be told otherwise by a sharding."""

    by_unit: ClassVar[bool] = False
    """Layers are gathered and shared one by one: the first and the last of a run have other neighbours than the rest."""
    by_piece: ClassVar[bool] = True
    """Each block has rows of weights, states and gradients of its own, equal blocks equal ones."""
    leaves: ClassVar[bool] = False
    """Whether `left` may have rows."""

    @property
    def unshared(self) -> bool:
        """Whether micro-batches before the last leave gradients that the ranks do not share (no_sync)."""
        return False

    @property
    def at_rest(self) -> Layout:
        """What of it weights, gradients and states follow from."""
        return self

    @property
    def tells_apart(self) -> bool:
        """Whether it knows some pieces of the network by their labels."""
        return False

    def local(self, whole: tuple[Group, ...], setup: Setup) -> tuple[Group, ...]:
        """The parameters as they lie on this rank; all rows of weights, gradients and states follow from that."""
        return whole

    def weights(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """Weights and buffers that live all the time."""
        return weight_lines(network, recipe.setup, self)

    def states(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """Optimizer states and master copies."""
        return state_lines(network, recipe.setup, recipe.optimizer, self)

    def gradients(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """Gradients when backward is done."""
        return gradient_lines(network, recipe.setup, recipe.gradient, self)

    def accumulated(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """Gradients of earlier micro-batches, where the recipe has several."""
        return self.gradients(network, recipe)

    def lives(self, recipe: Recipe) -> GradientsLive:
        """How long gradients live, whatever becomes of a layer's when its backward is done."""
        return recipe.gradients_live

    def trained(self, network: Network, setup: Setup, gradient: DType | None, stepped: DType | None) -> Trained:
        """What the optimizer of this rank steps."""
        return trained(network, setup, gradient, stepped, self)

    def buffers(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """What else lives all the time (buckets, global buffers)."""
        return ()

    def at_step(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """What lives while the optimizer runs, beside gradients, states and the optimizer's own temporaries."""
        return ()

    def unsharded_and_comm(self, timeline: StepTimeline, index: int, moment: ShardEvent) -> tuple[Line, ...]:
        """What is on the device beside the step's own tensors while a copy of segment `index` is at `moment`."""
        return ()

    def sums_unsharded_and_comm(self, timeline: StepTimeline, index: int) -> dict[ShardEvent, int]:
        """The sum of `beside` at each moment of a segment."""
        moments = SHARD_EVENTS if self.by_unit else ALONE
        return {moment: sum(line.bytes for line in self.unsharded_and_comm(timeline, index, moment)) for moment in moments}

    def resident_after_forward(self, timeline: StepTimeline, index: int) -> int:
        """Bytes that forward of one copy of a segment leaves beside what autograd keeps, until the copy's backward begins."""
        return 0

    def gradient_left(self, timeline: StepTimeline, index: int) -> int:
        """Bytes of gradient that backward of one copy of a segment leaves until the step."""
        segment = timeline.row[index]
        return timeline.measures[index].gradients if segment.keeps_gradients else 0

    def retained_in_backward(self, timeline: StepTimeline, done: tuple[int, ...]) -> tuple[Line, ...]:
        """What else stays until all of backward is done; `done`: of each segment, how many copies have gone back."""
        return ()

    def sum_retained_in_backward(self, timeline: StepTimeline, index: int, before: int) -> int:
        """The sum of `left` while a copy of segment `index` goes back, `before` copies of which wait."""
        return sum(line.bytes for line in self.retained_in_backward(timeline, timeline.done(index, before))) if self.leaves else 0

    def tensors(self, network: Network, setup: Setup) -> tuple[Parameter, ...]:
        """The parameters of this rank in the order in which they are loaded and stepped."""
        return tensors(network, setup)

    def stepped_tensors(self, network: Network, setup: Setup) -> tuple[Parameter, ...]:
        """The same as far as the optimizer is concerned: what it is not given is not trained."""
        return self.tensors(network, setup)

    def writer(self, training: Training) -> Program:
        """Writes the allocations of a step in program order."""
        from everybyte.rules.step.allocation_program import Program  # needed by those alone who ask for reserved bytes

        return Program(training)


WHOLE = Layout()
"""One GPU."""
