"""PyTorch's second form of fully sharded data parallel (fully_shard): each tensor is cut by rows.

A tensor belongs to the stream on which it is made, and its memory is used again on that stream alone. FSDP2 has three
(torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py): units are gathered into buffers of the copy-in stream, copied out into one tensor a
weight on the default stream, where gradients and the input of a reduce-scatter are too; the shared gradients are results of the
reduce-scatter stream.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from everybyte.basics.dtypes import DType
from everybyte.basics.units import ceil_div
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Dim, elements
from everybyte.layers.recording.tape import Parameter
from everybyte.ledger.build import Line
from everybyte.models.count import declared
from everybyte.rules.sharding.fsdp_units import ROOT, UnitSize, gathered_bytes, padded, padded_numel, unit_sizes
from everybyte.rules.sharding.fully_sharded import WHOLE_ROOT, Sharded, UnitMoves, accumulated_of, row_of_bytes, unit_of
from everybyte.rules.step.layout import WHOLE
from everybyte.rules.step.persistent_state import Group, parameter_tensors
from everybyte.rules.step.program import Make, Op, Spend
from everybyte.rules.step.recipe import GradientsLive, Recipe
from everybyte.rules.step.row import StepRow

FSDP2 = "pytorch torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, _fsdp_collectives.py"
EXPERTS = ".experts."
"""What stands before the names of stacked experts."""
GATHER, REDUCE = 1, 2
"""Streams."""


class Piece(NamedTuple):
    """What one unit moves."""

    whole: tuple[int, ...]
    """Bytes of its gathered tensors, rows padded to a multiple of the ranks."""
    size: int
    """Their sum."""
    trained: int
    """Padded numbers that get a gradient."""
    plain: int
    """The same without padding: autograd's own gradients have the shapes of the parameters."""
    own: int
    """Of these, this rank's."""


EMPTY = Piece((), 0, 0, 0, 0)


class Fsdp2(Sharded, frozen=True):
    """FSDP2 (fully_shard): each tensor is cut along its first dimension, the last rank's part padded to the size of the others."""

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

    def moves(self, step: StepRow) -> Fsdp2Moves:
        """Units gathered and freed around their layers."""
        return Fsdp2Moves(step, self)

    def made(self, step: StepRow, index: int) -> int:
        """Padded numbers of a segment's weights that have a gradient: of adapters that no token uses there is none."""
        return sum(padded(s.dims, self.degree) for s in step.row[index].tally.gradients)


class Fsdp2Moves(UnitMoves):
    """The root, whole until its gradients are shared at the end of backward, and what FSDPParamGroup holds of the units around a layer.

    Forward: a unit is copied out of the buffer in which it was gathered, which is freed when the next unit has been copied out
    (wait_for_unshard holds the earlier result until then). Backward: the unit until its backward is done, the buffer of the unit that backward
    needs next, the input of the last reduce-scatter until the next.
    """

    source = FSDP2
    reduced = "reduce-scatter input"

    def __init__(self, step: StepRow, layout: Fsdp2) -> None:
        super().__init__(step, layout)
        self.layout = layout
        pieces = pieces_of(step.network, step.recipe.setup, layout)
        self.root_piece = pieces.get(ROOT, EMPTY)
        names = [layout.units.of(segment.part) for segment in step.row]
        self.pieces = [EMPTY if name == ROOT else pieces.get(name, EMPTY) for name in names]
        self.last_block = max((i for i, name in enumerate(names) if name != ROOT and name not in layout.units.apart), default=-1)
        self.kept = [not layout.reshards or name in layout.kept_units or (layout.keeps_last and i == self.last_block) for i, name in enumerate(names)]
        self.last = ""
        """The slot of the buffer of the last unit that forward has gathered."""
        self.is_cast = layout.on_host or (layout.stored is not None and layout.stored != step.recipe.setup.weights)

    def accumulated(self) -> list[Op]:
        """What earlier micro-batches left: this rank's shares, or under no_sync the whole gradients in the type of the sum."""
        layout, recipe, ops = self.layout, self.step.recipe, list[Op]()
        for index in (-1, *range(len(self.step.row))):
            piece = self.root_piece if index < 0 else self.pieces[index]
            whole = layout.whole(ROOT if index < 0 else self.step.row[index].part)
            size = layout.summed(recipe).nbytes(piece.plain) if whole else layout.shard(recipe).nbytes(piece.own)
            for _ in range(1 if index < 0 else self.step.row[index].copies):
                ops += self.make(accumulated_of(index) if whole else f"shares/{index}", size, 0 if whole else REDUCE)
        return ops

    def stays(self, index: int) -> bool:
        """Whether the unit of a segment stays whole from forward to backward."""
        return self.kept[index]

    # -- weights ------------------------------------------------------------------------------------------------------------
    def _gather(self, index: int) -> list[Op]:
        """The all-gather: the rank's part is cast into one tensor, then copied into its place in the buffer. One rank copies its shard at once."""
        unit, piece = (self.root, self.root_piece) if index < 0 else (self.units[index], self.pieces[index])
        if not piece.whole or self.layout.degree == 1:
            return []
        return [*self.make("cast", self.cast(unit), GATHER), *self.make(buffer_of(index), piece.size, GATHER), *self.free("cast")]

    def _copy_out(self, index: int) -> list[Op]:
        piece, slot = (self.root_piece, WHOLE_ROOT) if index < 0 else (self.pieces[index], unit_of(index))
        if not piece.whole:
            return []
        self.slots.setdefault(slot, []).append(piece.size)
        return [Make(slot, piece.size, 0, piece.whole, self.layout.degree == 1 and self.is_cast)]

    def _enter(self, index: int) -> list[Op]:
        """Forward: the buffer of the last unit goes when the next one is copied out."""
        if index >= 0 and not self.pieces[index].whole:
            return []
        earlier, self.last = self.last, buffer_of(index)
        return [*self._gather(index), *self._copy_out(index), *self.free(earlier)]

    def before_forward(self, index: int, copy: int) -> list[Op]:
        """The unit before is freed, unless it stays, and this one gathered."""
        ops = [] if index or copy else self._enter(-1)
        earlier = self.earlier(index, copy)
        return [*ops, *(self.free(unit_of(earlier)) if earlier >= 0 and not self.kept[earlier] else ()), *self._enter(index)]

    def forward_done(self) -> list[Op]:
        """The last buffer goes with the root's hook, and the last unit, unless it stays."""
        units = [slot for slot in self.living() if slot.startswith("unit/") and slot != WHOLE_ROOT and not self.kept[int(slot[5:])]]
        return [*self.free_all(slot for slot in self.living() if slot.startswith("buffer/")), *self.free_all(units)]

    def before_backward(self, index: int, copy: int) -> list[Op]:
        """The unit, if it is not whole, and the buffer of the one that backward needs next."""
        ops: list[Op] = []
        if self.pieces[index].whole and not self.kept[index]:
            ops += [] if self.slots.get(buffer_of(index)) else self._gather(index)
            ops += [*self._copy_out(index), *self.free(buffer_of(index))]
        ahead = self.earlier(index, copy)
        is_needed = ahead >= 0 and not self.kept[ahead] and not self.slots.get(buffer_of(ahead))
        return [*ops, *(self._gather(ahead) if is_needed else ())]

    def after_backward(self, index: int, copy: int) -> list[Op]:
        """The gradients of the unit are shared, the root's when backward ends."""
        return [] if self.in_root[index] else self._share(index)

    def _share(self, index: int) -> list[Op]:
        """A unit's backward is done: its weights go, then the input of the last reduce-scatter; its gradients are copied into a new one."""
        layout, recipe = self.layout, self.step.recipe
        spent = [(i, s.copies) for i, s in enumerate(self.step.row) if self.in_root[i]] if index < 0 else [(index, 1)]
        done = [Spend(i) for i, times in spent if self.step.made(i) for _ in range(times)]
        ops = self.free(WHOLE_ROOT if index < 0 else unit_of(index))
        whole = layout.whole(ROOT if index < 0 else self.step.row[index].part)
        if not self.syncs and whole:
            # added to what is there
            return [*ops, *done]
        piece = self.root_piece if index < 0 else self.pieces[index]
        trained = piece.trained if index < 0 else min(piece.trained, layout.made(self.step, index))
        ops += [*self.free("reduce"), *self.make("reduce", layout.summed(recipe).nbytes(trained)), *done, *self.free(accumulated_of(index))]
        mine = ceil_div(trained * piece.own, piece.trained) if trained else 0
        return [*ops, *(self.keep_share(index, layout.summed(recipe), mine, REDUCE, whole=whole) if mine else ())]

    def backward_done(self) -> list[Op]:
        """The root's gradients are shared, and the last buffers go."""
        buffers = self.free_all(slot for slot in self.living() if slot.startswith("buffer/"))
        ops = [*buffers, *self._share(-1), *self.free("reduce")]
        return [*ops, *self.free_all(slot for slot in self.living() if slot.startswith("unit/"))]

    def name(self, slot: str, index: int) -> str:
        """Buffers of units are called by what they are there for."""
        if not slot.startswith("buffer/"):
            return super().name(slot, index)
        if slot != buffer_of(index) and self.pieces[index].whole:
            return "gathered/earlier all-gather output"
        return "gathered/all-gather output"


@lru_cache(maxsize=4096)
def pieces_of(network: Network, setup: Setup, layout: Fsdp2) -> dict[str, Piece]:
    """What the units of a network move, by name."""
    whole: dict[str, list[int]] = {}
    counts: dict[str, tuple[int, int, int]] = {}
    for row in declared(network, setup):
        p, name = row.parameter, layout.units.of(row.part)
        if not layout.shards(p) or not p.dims:
            continue
        times = p.count * (row.copies if name == ROOT else 1)
        ways = layout.ways(p)
        by_rows = ways <= p.dims[0].size or EXPERTS not in f".{p.name}"
        numel = padded_numel(p, ways) if by_rows else elements(p.dims)[0]
        whole.setdefault(name, []).extend([gathered_bytes(p, setup, layout.packed_tensors, numel)] * times)
        trained, plain, own = counts.get(name, (0, 0, 0))
        more = numel * times if p.trainable else 0
        counts[name] = trained + more, plain + (elements(p.dims)[0] * times if p.trainable else 0), own + ceil_div(more, ways)
    return {name: Piece(tuple(sizes), sum(sizes), *counts[name]) for name, sizes in whole.items()}


def buffer_of(index: int) -> str:
    """The slot of the buffer in which the unit of a segment is gathered; -1: of the root's."""
    return f"buffer/{'root' if index < 0 else index}"
