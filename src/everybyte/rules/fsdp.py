"""Fully sharded data parallel: PyTorch's first form (one flat tensor a unit) and its second (each tensor by rows)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from everybyte.basics.dtypes import INT8, DType
from everybyte.basics.units import ceil_div
from everybyte.layers.network import Network
from everybyte.layers.setup import Setup
from everybyte.layers.size import Dim
from everybyte.layers.tape import Parameter
from everybyte.ledger.build import Line, plain
from everybyte.rules.layout import WHOLE, Layout, Moment
from everybyte.rules.static import Group, groups, parameter_tensors
from everybyte.rules.units import ROOT, Units, UnitSize, unit_sizes

if TYPE_CHECKING:
    from everybyte.rules.recipe import Recipe
    from everybyte.rules.step import Course

FSDP1 = "pytorch torch/distributed/fsdp/_flat_param.py, _runtime_utils.py"
FSDP2 = "pytorch torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, _fsdp_collectives.py"
HELD = (
    "pytorch fsdp/_runtime_utils.py _register_post_backward_reshard_only_hook: a unit without trained weights has a hook on its inputs; under "
    "reentrant recomputation each is a leaf, which the hook keeps with its gradient until backward ends"
)


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
    unsharded: bool = False
    """Gradients of several micro-batches are accumulated whole, under no_sync, and shared in the last one's backward."""

    by_unit: ClassVar[bool] = True

    def shards(self, parameter: Parameter) -> bool:
        """Whether the ranks share a parameter."""
        return not (parameter.buffer or (parameter.adapter and self.ignores_adapters))

    def sizes(self, network: Network, setup: Setup) -> dict[str, UnitSize]:
        """The units, whole."""
        return unit_sizes(network, setup, self.units, self.packed_tensors, self.ignores_adapters)

    def unit(self, course: Course, index: int) -> UnitSize:
        """The unit that runs as segment `index`; nothing where it is the root, which is counted apart."""
        name = self.units.of(course.row[index].part) if 0 <= index < len(course.row) else ROOT
        return UnitSize(0, 0, 0) if name == ROOT else self.sizes(course.network, course.recipe.setup).get(name, UnitSize(0, 0, 0))

    def root(self, course: Course) -> UnitSize:
        """The root unit."""
        return self.sizes(course.network, course.recipe.setup).get(ROOT, UnitSize(0, 0, 0))

    def gradient_left(self, course: Course, index: int) -> int:
        """The root's gradients stay whole until backward ends; of other units this rank's share stays, unless an earlier micro-batch made its place."""
        segment = course.row[index]
        whole = segment.tally.weight_gradients.at(course.point)
        if self.units.of(segment.part) == ROOT:
            return whole if segment.keeps_gradients else 0
        if course.recipe.gradients_live == "always":
            return 0
        unit = self.unit(course, index)
        if not unit.trained or (self.ignores_adapters and course.recipe.setup.adapter is not None):
            return whole
        return (self.stored or course.recipe.setup.weights).nbytes(ceil_div(unit.trained, self.degree))

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


class FlatShards(Sharded, frozen=True):
    """FSDP1: the weights of a unit lie in one flat tensor, padded to a multiple of the ranks; adapters that peft wraps are units of their own."""

    prefetches: bool = True
    """The next unit of backward is gathered before the one that runs is done; not under reentrant recomputation, whose first forward registers
    no hooks."""
    gathers_once: bool = False
    """Units stay gathered from forward to backward (SHARD_GRAD_OP)."""
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
                    kept += [_bytes(p, size) for size in parameter_tensors(p, setup)[self.packed_tensors :]]
                name = "adapters" if p.adapter else ("packed" if p.packed else ("" if p.trainable else "frozen"))
                flat.setdefault((group.part, group.copies, name), []).append((group, p))
            if kept:
                found.append(group._replace(members=tuple(kept)))
        for (part, copies, name), members in flat.items():
            found.append(self._flat(part, copies, name, members, setup))
        return tuple(found)

    def _flat(self, part: str, copies: int, name: str, members: list[tuple[Group, Parameter]], setup: Setup) -> Group:
        first = self.own(members[0][1], setup)
        if first.packed:
            numel = sum(p.count * sum(parameter_tensors(p, setup)[: self.packed_tensors]) for _, p in members)
            first = replace(first, dtype=INT8, packed=False)
        else:
            numel = sum(p.numel for _, p in members)
        share = ceil_div(numel, self.degree)
        known = (("P", numel), ("pad", share * self.degree - numel), ("D", self.degree))
        letter = "P/D" if not known[1][1] else "(P+pad)/D"
        row = replace(first, name=f"{name or 'weights'}.flat_param", dims=(Dim(letter, share),), count=1)
        return Group(f"{part}/{name}" if name else f"{part}/flat", copies, (row,), known)

    def beside(self, course: Course, index: int, moment: Moment) -> tuple[Line, ...]:
        """The root, whole for the whole step; the unit that runs, whole; in backward the next one, where it is fetched ahead. When the gradients
        of a unit are done they are joined in one flat tensor before they are shared."""
        found = [_gathered("unsharded/root", self.root(course).gathered, FSDP1)]
        unit = self.unit(course, index)
        if self.gathers_once:
            found += self._all(course, index, moment)
        else:
            found.append(_gathered(f"gathered/{course.row[index].label}", unit.gathered, FSDP1))
            if moment != "forward" and self.prefetches:
                found.append(_gathered("gathered/next unit", self.unit(course, _earlier(course, index)).gathered, FSDP1))
        if moment == "reduce":
            flat = course.row[index].tally.weight_gradients.at(course.point)
            found.append(Line("reduce/flat gradient", "gradient", flat, plain("g", g=flat), f"{FSDP1}: the views' gradients are joined", "formula"))
        return tuple(line for line in found if line.bytes)

    def _all(self, course: Course, index: int, moment: Moment) -> list[Line]:
        """Units that stay whole: in forward those that ran, in backward those that have not gone back."""
        total = sum(self.unit(course, i).gathered * course.row[i].copies for i in range(index + 1))
        return [_gathered("unsharded/blocks", total, f"{FSDP1}: SHARD_GRAD_OP reshards after backward alone")]

    def left(self, course: Course, done: tuple[int, ...]) -> tuple[Line, ...]:
        """Under `holds_inputs`, the inputs of the layers that have gone back and their gradients, but for the gradient that the layer which runs
        now was given."""
        if not self.holds_inputs:
            return ()
        found, given = [], True
        for index, (segment, copies) in enumerate(zip(course.row, done, strict=True)):
            if not copies or segment.tally.outgoing is None or not self.unit(course, index).gathered:
                continue
            point = course.points[segment.tower]
            x, g, gradients = segment.tally.kept_size.at(point), segment.tally.outgoing.size.at(point), copies - given
            text = plain("copies·x + gradients·g", copies=copies, x=x, gradients=gradients, g=g)
            found.append(Line(f"held/{segment.label}", "autograd_detail", copies * x + gradients * g, text, HELD))
            given = False
        return tuple(found)


class RowShards(Sharded, frozen=True):
    """FSDP2 (fully_shard): each tensor is cut along its first dimension, the last rank's part padded to the size of the others."""

    reduce: DType | None = None
    """Type in which gradients are summed; None: that in which they are made."""
    reshards: bool = True
    """Units are freed after forward and gathered again in backward."""

    def local(self, whole: tuple[Group, ...], setup: Setup) -> tuple[Group, ...]:
        """The same tensors with ceil(rows/D) rows."""
        return tuple(g._replace(members=tuple(self._rows(p, setup) for p in g.members), letters=(*g.letters, ("D", self.degree))) for g in whole)

    def _rows(self, p: Parameter, setup: Setup) -> Parameter:
        if not self.shards(p) or not p.dims:
            return p
        if p.packed:
            first, *rest = parameter_tensors(p, setup)
            return _bytes(p, ceil_div(first, self.degree) + sum(rest))
        rows = p.dims[0]
        share = ceil_div(rows.size, self.degree)
        letter = f"{rows.letter}/D" if share * self.degree == rows.size else f"{rows.letter}_D"
        return replace(self.own(p, setup), dims=(Dim(letter, share), *p.dims[1:]))

    def beside(self, course: Course, index: int, moment: Moment) -> tuple[Line, ...]:
        """Forward: the unit and the buffer that it was gathered in, which stays until the next one is copied out. Backward: the unit, the next one's
        buffer, and the input of the last reduce-scatter. The root stays whole for the whole step."""
        root, unit = self.root(course), self.unit(course, index)
        found = [_gathered("unsharded/root", root.gathered, FSDP2)]
        if self.reshards:
            found.append(_gathered(f"gathered/{course.row[index].label}", unit.gathered, FSDP2))
        else:
            total = sum(self.unit(course, i).gathered * course.row[i].copies for i in range(len(course.row)))
            found.append(_gathered("unsharded/blocks", total, f"{FSDP2}: reshard_after_forward=False"))
        if moment == "forward":
            buffer = unit.gathered or (root.gathered if index == 0 else 0)
            found.append(_gathered("gathered/all-gather output", buffer, f"{FSDP2}: freed when the next unit is copied out"))
            return tuple(line for line in found if line.bytes)
        if self.reshards:
            found.append(_gathered("gathered/next unit", self.unit(course, _earlier(course, index)).gathered, FSDP2))
        found.append(self._reduce_input(course, index, moment))
        return tuple(line for line in found if line.bytes)

    def _reduce_input(self, course: Course, index: int, moment: Moment) -> Line:
        """Gradients of a unit in the type of the sum: those of the unit before in backward's order, or of this one when it is done."""
        later = index if moment == "reduce" or course.row[index].copies > 1 else index + 1
        unit = self.unit(course, later)
        if moment == "reduce" and self.units.of(course.row[index].part) == ROOT and index == 0:
            unit = self.root(course)
        kind = self.reduce or course.recipe.gradient or course.recipe.setup.weights
        size = 0 if self.unsharded else kind.nbytes(unit.trained)
        return Line("reduce/reduce-scatter input", "comm_buffer", size, plain("e·P", e=kind.nbytes(1), P=unit.trained), FSDP2, "formula")


def _bytes(parameter: Parameter, size: int) -> Parameter:
    """A tensor of bytes that stands for a packed one."""
    return replace(parameter, dtype=INT8, packed=False, dims=(Dim("q", size),))


def _earlier(course: Course, index: int) -> int:
    """The segment whose unit backward needs next."""
    return index if course.row[index].copies > 1 else index - 1


def _gathered(name: str, size: int, source: str) -> Line:
    return Line(name, "parameter", size, plain("U", U=size), f"{source}: a unit's weights, whole, in the type of the layers", "formula")
