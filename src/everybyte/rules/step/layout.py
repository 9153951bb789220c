"""How weights, gradients and optimizer states lie on one rank, and what moves between ranks while the step runs.

A layout is a value that an engine chooses. The base class is one GPU: everything whole, nothing moves. Shardings (`fsdp1`, `fsdp2`, `zero`,
Megatron's) say what differs: which part of each tensor this rank holds (`local`), what it makes and frees around the layers that run (`moves`: gathered
parameters, buckets, gradients on their way), what lives all the time and what the optimizer's step adds.
"""

from __future__ import annotations

from typing import ClassVar

from everybyte.basics.dtypes import DType
from everybyte.basics.record import Record
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.tape import Parameter
from everybyte.ledger.build import Line
from everybyte.models.count import tensors
from everybyte.rules.step.persistent_state import Group, Trained, gradient_lines, state_lines, tensor_bytes, trained, weight_lines
from everybyte.rules.step.program import Make, Moves, Op, Still
from everybyte.rules.step.recipe import GradientsLive, Recipe
from everybyte.rules.step.row import StepRow


class Layout(Record, frozen=True):
    """One GPU: everything whole. Each method may be told otherwise by a sharding."""

    by_unit: ClassVar[bool] = False
    """Layers are gathered and shared one by one: the first and the last of a run have other neighbours than the rest."""
    by_piece: ClassVar[bool] = True
    """Each block has rows of weights, states and gradients of its own, equal blocks equal ones."""
    leaves: ClassVar[bool] = False
    """What it has beside a layer depends on how many have run."""

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

    def loading(self, network: Network, recipe: Recipe) -> list[Op]:
        """How the weights come to the device: one tensor after the other."""
        return [Make("weights", tensor_bytes(p, recipe.setup)) for p in self.tensors(network, recipe.setup)]

    def optimizing(self, network: Network, recipe: Recipe, *, is_first: bool) -> list[Op] | None:
        """What the optimizer makes and frees, its states in the first step among it; None: as any does on tensors of their own."""
        return None

    def moves(self, step: StepRow) -> Moves:
        """Writes what this layout makes and frees around the layers of a step."""
        return Still(step)

    def tensors(self, network: Network, setup: Setup) -> tuple[Parameter, ...]:
        """The parameters of this rank in the order in which they are loaded and stepped."""
        return tensors(network, setup)

    def stepped_tensors(self, network: Network, setup: Setup) -> tuple[Parameter, ...]:
        """The same as far as the optimizer is concerned: what it is not given is not trained."""
        return self.tensors(network, setup)


WHOLE = Layout()
"""One GPU."""
