"""What both of PyTorch's forms of fully sharded data parallel have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from msgspec.structs import replace

from everybyte.basics.dtypes import INT8, DType
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Dim
from everybyte.layers.recording.tape import Parameter
from everybyte.ledger.build import Known, Line, plain
from everybyte.rules.sharding.fsdp_units import NOTHING, ROOT, Units, UnitSize, unit_sizes
from everybyte.rules.step.layout import WHOLE, Layout
from everybyte.rules.step.persistent_state import groups
from everybyte.rules.step.program import Moves, Op, ShardEvent
from everybyte.rules.step.recipe import GradientsLive, Recipe
from everybyte.rules.step.row import StepRow


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


WHOLE_ROOT = "unit/root"


class UnitMoves(Moves):
    """What both forms make and free: units by segment, with the root unit around all, and the gradients that they share."""

    source = ""
    """Where the form is written."""
    reduced = ""
    """What gradients are joined in."""

    def __init__(self, step: StepRow, layout: Sharded) -> None:
        super().__init__(step)
        self.sharded = layout
        sizes = layout.sizes(step.network, step.recipe.setup)
        names = [layout.units.of(segment.part) for segment in step.row]
        self.in_root = [name == ROOT for name in names]
        self.root = sizes.get(ROOT, NOTHING)
        self.units: list[UnitSize] = [NOTHING if name == ROOT else sizes.get(name, NOTHING) for name in names]
        """Of each segment; nothing where it is in the root."""
        places = range(len(self.units))
        self._before, self._behind = self._neighbours(places), self._neighbours(places[::-1])[::-1]

    def _neighbours(self, places: range) -> list[int]:
        """Of each place, the one before it that has a unit, going through them in this order; -1: none."""
        found, last = [], -1
        for place in places:
            found.append(last)
            last = place if self.units[place].gathered else last
        return found

    def earlier(self, index: int, copy: int) -> int:
        """Segment of the unit that comes before a copy of a segment; -1: none."""
        return index if copy and self.units[index].gathered else self._before[index]

    def later(self, index: int, copy: int) -> int:
        """Segment of the unit that comes behind it; -1: none."""
        return index if copy + 1 < self.step.row[index].copies and self.units[index].gathered else self._behind[index]

    def cast(self, unit: UnitSize) -> int:
        """Bytes of this rank's part of what is stored in another type than it is gathered in, or on the host."""
        layout, kind = self.sharded, self.step.recipe.setup.weights
        if layout.on_host:
            return unit.gathered // layout.degree
        trained = kind.nbytes(unit.trained)
        parts = ((layout.stored, trained), (layout.stored_frozen, unit.gathered - trained))
        return sum(size for stored, size in parts if stored not in (None, kind)) // layout.degree

    def keep_share(self, index: int, kind: DType, numel: int, stream: int, *, whole: bool) -> list[Op]:
        """This rank's share of the gradients of a unit, in the type of the sum, then in that of the shard; it stays, unless it is added to that of an
        earlier micro-batch (`whole`: which left whole gradients), or goes to host memory."""
        layout, recipe = self.sharded, self.step.recipe
        stored = layout.shard(recipe)
        shared = self.make("share", kind.nbytes(numel), stream)
        if layout.on_host or (recipe.gradients_live == "always" and not whole):
            return [*shared, *self.free("share")]
        if stored == kind:
            self.slots["share"].pop()
            return self.make(gradients_of(index), kind.nbytes(numel), stream)
        return [*shared, *self.make(gradients_of(index), stored.nbytes(numel), stream), *self.free("share")]

    def rows(self, index: int, moment: ShardEvent, copy: int, living: Mapping[str, tuple[int, int]]) -> Iterable[Line]:
        """Units by what they are there for, buffers, gradients."""
        for slot, (count, size) in living.items():
            kind, _, place = slot.partition("/")
            if kind == "unit" and place == str(index) and not (moment == "gather" and size == 0):
                one = size // count
                yield self._weights(f"gathered/{self.step.row[index].label}", one)
                if count > 1:
                    yield self._others(index, count - 1, one)
            elif kind == "unit" and slot != WHOLE_ROOT:
                yield self._others(int(place), count, size // count)
            elif kind == "gradients":
                text = plain("copies·g", copies=count, g=size // count)
                label = "root" if place == "root" else self.step.row[int(place)].label
                yield Line(f"gradients/{label}", "gradient", size, text, "gradients of the layers whose backward has run")
            elif kind in ("reduce", "share"):
                source = f"{self.source}: gradients of a unit on their way to the other ranks"
                yield Line(f"reduce/{self.reduced if kind == 'reduce' else 'share'}", "comm_buffer", size, self._text(size), source, "formula")
            elif kind != "accumulated":
                yield self._weights(self.name(slot, index), size)

    def name(self, slot: str, index: int) -> str:
        """What the row of a slot is called."""
        return {WHOLE_ROOT: "unsharded/root", "cast": "gathered/cast shard"}[slot]

    def stays(self, index: int) -> bool:
        """Whether the unit of a segment stays whole from forward to backward."""
        raise NotImplementedError

    def _others(self, index: int, count: int, one: int) -> Line:
        """Units that stay whole, or one that is fetched ahead."""
        if not self.stays(index):
            return self._weights("gathered/next unit", count * one)
        source = "weights that stay gathered until the layer's backward"
        return Line(f"unsharded/{self.step.row[index].label}", "parameter", count * one, plain("copies·U", copies=count, U=one), source, "formula")

    def _weights(self, name: str, size: int) -> Line:
        return Line(name, "parameter", size, self._text(size), f"{self.source}: a unit's weights, whole, in the type of the layers", "formula")

    def _text(self, size: int) -> Known:
        each = self.step.recipe.setup.weights.block_bytes
        return plain("e·P", e=each, P=size // each) if size % each == 0 else plain("U", U=size)


def unit_of(index: int) -> str:
    """The slot of the unit of a segment."""
    return f"unit/{index}"


def gradients_of(index: int) -> str:
    """The slot of its gradients; -1: of the root's."""
    return f"gradients/{'root' if index < 0 else index}"


def accumulated_of(index: int) -> str:
    """The slot of its whole gradients that earlier micro-batches left."""
    return f"accumulated/{'root' if index < 0 else index}"
