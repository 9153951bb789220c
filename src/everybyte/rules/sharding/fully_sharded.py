"""What both of PyTorch's forms of fully sharded data parallel have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from msgspec.structs import replace

from everybyte.basics.dtypes import INT8, DType
from everybyte.basics.units import ceil_div
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Dim
from everybyte.layers.recording.tape import Parameter
from everybyte.ledger.build import Line, plain
from everybyte.rules.sharding.fsdp_units import ROOT, UnitRow, Units, UnitSize, unit_sizes
from everybyte.rules.step.layout import WHOLE, Layout, ShardEvent
from everybyte.rules.step.persistent_state import groups

if TYPE_CHECKING:
    from everybyte.rules.step.recipe import GradientsLive, Recipe
    from everybyte.rules.step.timeline import StepTimeline


class Around(NamedTuple):
    """Bytes beside a layer: gathered units, gradients that are being shared."""

    root: int = 0
    unit: int = 0
    """The unit that runs."""
    output: int = 0
    """The buffer in which it was gathered."""
    earlier: int = 0
    """That of the unit before."""
    next: int = 0
    """The unit that is fetched ahead."""
    cast: int = 0
    """This rank's part of it, in the type in which it is gathered."""
    reduce: int = 0
    """Gradients of a unit."""


ROWS = {
    "root": "unsharded/root", "output": "gathered/all-gather output", "earlier": "gathered/earlier all-gather output", "next": "gathered/next unit",
    "cast": "gathered/cast shard",
}  # fmt: skip
"""What rows are called; that of the unit is called after its layer, that of gradients after what becomes of them."""


class Sharded(Layout, frozen=True):
    """What both forms have in common. `degree` ranks share each tensor."""

    degree: int = 1
    stored: DType | None = None
    """Type of the shards of trained weights; None: the type in which layers compute."""
    stored_frozen: DType | None = None
    """The same for weights that are not trained."""
    units: Units = Units()
    packed_tensors: int = 1
    """Of the tensors that stand for a packed weight, how many are sharded; the others every rank has."""
    ignores_adapters: bool = False
    """Adapters are left out of the sharding."""
    on_host: bool = False
    """Shards, gradients and states live in host memory, where the optimizer runs."""
    unsharded: bool = False
    """Gradients of several micro-batches are accumulated whole, under no_sync, and shared in the last one's backward."""

    by_unit: ClassVar[bool] = True
    source: ClassVar[str] = ""
    """Where the form is written."""
    reduced: ClassVar[str] = ""
    """What gradients are joined in."""

    @property
    def unshared(self) -> bool:
        """As the setting says."""
        return self.unsharded

    def summed(self, recipe: Recipe) -> DType:
        """Type in which gradients are summed: that in which they are made."""
        adapter = recipe.setup.adapter
        return recipe.gradient or (recipe.setup.weights if adapter is None else adapter.dtype)

    def shard(self, recipe: Recipe) -> DType:
        """Type of the gradients of shards."""
        adapter = recipe.setup.adapter
        return self.stored or (recipe.setup.weights if adapter is None else adapter.dtype)

    def shards(self, parameter: Parameter) -> bool:
        """Whether the ranks share a parameter."""
        return not (parameter.buffer or (parameter.adapter and self.ignores_adapters))

    def sizes(self, network: Network, setup: Setup) -> dict[str, UnitSize]:
        """The units, whole."""
        return unit_sizes(network, setup, self.units, self.packed_tensors, self.ignores_adapters)

    def of_row(self, timeline: StepTimeline) -> UnitRow:
        """The units of a timeline."""
        found = timeline.frame.units
        if found is None:
            parts = [(segment.part, segment.copies) for segment in timeline.row]
            found = timeline.frame.units = UnitRow.of(parts, self.units, self.sizes(timeline.network, timeline.recipe.setup))
        return found

    def unit(self, timeline: StepTimeline, index: int) -> UnitSize:
        """The unit that runs as segment `index`; nothing where it is the root, which is counted apart."""
        return self.of_row(timeline).units[index]

    def cast(self, timeline: StepTimeline, unit: UnitSize) -> int:
        """Bytes of this rank's part of what is stored in another type than it is gathered in, or on the host."""
        kind = timeline.recipe.setup.weights
        if self.on_host:
            return unit.gathered // self.degree
        trained = kind.nbytes(unit.trained)
        parts = ((self.stored, trained), (self.stored_frozen, unit.gathered - trained))
        return sum(size for stored, size in parts if stored not in (None, kind)) // self.degree

    def root(self, timeline: StepTimeline) -> UnitSize:
        """The root unit."""
        return self.of_row(timeline).root

    def around(self, timeline: StepTimeline, index: int) -> dict[ShardEvent, Around]:
        """What is beside a layer at each of its moments."""
        raise NotImplementedError

    def unsharded_and_comm(self, timeline: StepTimeline, index: int, moment: ShardEvent) -> tuple[Line, ...]:
        """Gathered units and what is being shared around a layer."""
        each = timeline.recipe.setup.weights.block_bytes
        names = {"unit": f"gathered/{timeline.row[index].label}", "reduce": f"reduce/{self.reduced}", **ROWS}
        found = self.around(timeline, index)[moment]._asdict()
        return tuple(self._line(names[name], size, each) for name, size in found.items() if size)

    def sums_unsharded_and_comm(self, timeline: StepTimeline, index: int) -> dict[ShardEvent, int]:
        """Their sums."""
        return {moment: sum(found) for moment, found in self.around(timeline, index).items()}

    def _line(self, name: str, size: int, each: int) -> Line:
        """A row; `each`: bytes of a number of the layers."""
        text = plain("e·P", e=each, P=size // each) if size % each == 0 else plain("U", U=size)
        if name.startswith("reduce/"):
            return Line(name, "comm_buffer", size, text, f"{self.source}: gradients of a unit on their way to the other ranks", "formula")
        return Line(name, "parameter", size, text, f"{self.source}: a unit's weights, whole, in the type of the layers", "formula")

    def gradient_left(self, timeline: StepTimeline, index: int) -> int:
        """The root's gradients stay whole until backward ends, those of other units under no_sync; else this rank's share stays, unless an earlier
        micro-batch made its place."""
        segment = timeline.row[index]
        whole = timeline.measures[index].gradients
        if self.units.of(segment.part) == ROOT:
            return whole if segment.keeps_gradients else 0
        if timeline.recipe.gradients_live == "always" or self.on_host:
            return 0
        unit = self.unit(timeline, index)
        if self.unsharded or not unit.trained or (self.ignores_adapters and timeline.recipe.setup.adapter is not None):
            return whole
        return self.shard(timeline.recipe).nbytes(ceil_div(unit.trained, self.degree))

    def lives(self, recipe: Recipe) -> GradientsLive:
        """Gradients of a unit live together until its backward is done."""
        return "backward"

    def accumulated(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """Whole gradients where no_sync keeps them."""
        return WHOLE.gradients(network, recipe) if self.unsharded else self.gradients(network, recipe)

    def own(self, parameter: Parameter, setup: Setup) -> Parameter:
        """A parameter in the type in which it is stored."""
        stored = self.stored if parameter.trainable else self.stored_frozen
        return parameter if stored is None or parameter.adapter or parameter.packed or parameter.buffer else replace(parameter, dtype=stored)

    def tensors(self, network: Network, setup: Setup) -> tuple[Parameter, ...]:
        """The shards, unit after unit."""
        return tuple(p for g in groups(network, setup, self) for _ in range(g.copies) for p in g.members for _ in range(p.count))


def row_of_bytes(parameter: Parameter, size: int) -> Parameter:
    """A tensor of bytes that stands for a packed one."""
    return replace(parameter, dtype=INT8, packed=False, dims=(Dim("q", size),))
