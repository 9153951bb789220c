"""PyTorch's first form of fully sharded data parallel: the weights of a unit lie in one flat tensor.

A unit is gathered into one flat tensor of the unshard stream, from a cast shard of the pre-unshard stream; its shared gradient is a result of the
post-backward stream (torch/distributed/fsdp/_runtime_utils.py _unshard, _reduce_grad). A flat tensor that is freed while the compute stream may
still read it can be used again when that stream has passed: the limiter of all-gathers waits for it when two more are on their way
(_limiter_utils.py _FreeEventQueue).
"""

from __future__ import annotations

from msgspec.structs import replace

from everybyte.basics.units import ceil_div
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Dim
from everybyte.layers.recording.tape import Parameter
from everybyte.rules.sharding.fully_sharded import WHOLE_ROOT, Sharded, UnitMoves, accumulated_of, row_of_bytes, unit_of
from everybyte.rules.step.persistent_state import Group, parameter_tensors
from everybyte.rules.step.program import Hold, Op, Reuse, Spend
from everybyte.rules.step.row import StepRow

FSDP1 = "pytorch torch/distributed/fsdp/_flat_param.py, _runtime_utils.py"
CAST, GATHER, REDUCE = 1, 2, 3
"""Streams."""
IN_FLIGHT = 2
"""Freed flat tensors that wait for the compute stream."""


class Fsdp1(Sharded, frozen=True):
    """FSDP1: the weights of a unit lie in one flat tensor, padded to a multiple of the ranks; adapters that peft wraps are units of their own."""

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

    def moves(self, step: StepRow) -> Fsdp1Moves:
        """Units gathered and freed around their layers."""
        return Fsdp1Moves(step, self)


class Fsdp1Moves(UnitMoves):
    """The root is whole for the whole step; the unit that runs is whole; in backward the next one is, where it is fetched ahead. When the gradients of a
    unit are done they are joined in one flat tensor before they are shared."""

    source = FSDP1
    reduced = "flat gradient"

    def __init__(self, step: StepRow, layout: Fsdp1) -> None:
        super().__init__(step, layout)
        self.layout = layout
        self.freed: list[str] = []
        """Slots of freed units whose memory waits for the compute stream."""
        adapters = step.recipe.setup.adapter is not None and layout.adapters_apart and not layout.ignores_adapters
        self.fetches = layout.prefetches and not layout.gathers_once
        self.fetches_late = self.fetches and adapters
        """Adapters that are units of their own lie between two blocks: the first of a block, whose backward comes late, fetches the block before."""

    def queued(self) -> tuple[object, ...]:
        """The memory that waits too."""
        return (*super().queued(), *self.freed)

    def accumulated(self) -> list[Op]:
        """Whole gradients of earlier micro-batches, under no_sync."""
        kind = self.layout.summed(self.step.recipe)
        ops = self.make(accumulated_of(-1), kind.nbytes(self.root.trained)) if self.layout.unsharded else []
        for index, segment in enumerate(self.step.row if self.layout.unsharded else ()):
            for _ in range(segment.copies):
                ops += self.make(accumulated_of(index), kind.nbytes(self.units[index].trained))
        return ops

    def _gather(self, index: int) -> list[Op]:
        unit, slot = (self.root, WHOLE_ROOT) if index < 0 else (self.units[index], unit_of(index))
        if not unit.gathered:
            return []
        ops = self.make("cast", self.cast(unit), CAST)
        if len(self.freed) >= IN_FLIGHT:
            ops.append(Reuse(self.freed.pop(0)))
        return [*ops, *self.make(slot, unit.gathered, GATHER), *self.free("cast")]

    def _reshard(self, slot: str) -> list[Op]:
        ops = self.free(slot, waits=True)
        self.freed += [slot] * len(ops)
        return ops

    def stays(self, index: int) -> bool:
        """Under SHARD_GRAD_OP."""
        return self.layout.gathers_once

    def before_forward(self, index: int, copy: int) -> list[Op]:
        """The unit before is freed, this one gathered; the next one too, where it is fetched ahead."""
        ops = [] if index or copy else self._gather(-1)
        earlier = self.earlier(index, copy)
        if earlier >= 0 and not self.layout.gathers_once:
            ops += self._reshard(unit_of(earlier))
        if not self.layout.prefetches_forward or not self.slots.get(unit_of(index)):
            ops += self._gather(index)
        later = self.later(index, copy) if self.layout.prefetches_forward else -1
        return [*ops, *(self._gather(later) if later >= 0 else ())]

    def before_backward(self, index: int, copy: int) -> list[Op]:
        """The unit, if it is not whole, and the one that backward needs next."""
        ops = [] if self.slots.get(unit_of(index)) else self._gather(index)
        if self.layout.reruns:
            # the recomputed forward frees the unit, and backward gathers it once more
            ops += [*self._reshard(unit_of(index)), *self._gather(index)]
        return ops if self.fetches_late else [*ops, *self._fetch(index, copy)]

    def _fetch(self, index: int, copy: int) -> list[Op]:
        ahead = self.earlier(index, copy) if self.fetches else -1
        held = len(self.slots.get(unit_of(ahead), ()))
        return self._gather(ahead) if ahead >= 0 and held == (ahead == index) else []

    def after_backward(self, index: int, copy: int) -> list[Op]:
        """The gradients of the unit are shared, the root's when backward ends."""
        ops = self._fetch(index, copy) if self.fetches_late else []
        return ops if self.in_root[index] else [*ops, *self._share(index)]

    def held(self, index: int, copy: int) -> list[Op]:
        """What hooks hold until backward ends."""
        if not self.layout.holds_inputs or not self.units[index].gathered or self.step.row[index].tally.outgoing is None:
            return []
        return [Hold(index, gradient=self._is_held(index, copy))]

    def _is_held(self, index: int, copy: int) -> bool:
        """Whether what came back to the layer is the gradient of an input that a hook holds."""
        later = self.later(index, copy)
        return later >= 0 and self.step.row[later].tally.outgoing is not None

    def _share(self, index: int) -> list[Op]:
        """Gradients are joined, the unit is freed, this rank's share is made and cast to the type of the shard."""
        unit, slot, spent = (self.root, WHOLE_ROOT, self._of_root()) if index < 0 else (self.units[index], unit_of(index), [index])
        kind = self.layout.summed(self.step.recipe)
        if not unit.trained or not any(self.step.made(i) for i in spent):
            return self._reshard(slot)
        ops = [*self.make("reduce", kind.nbytes(unit.trained)), *(Spend(i) for i in spent for _ in range(self.step.row[i].copies if index < 0 else 1))]
        ops += self._reshard(slot)
        if not self.syncs:
            # added to what is there
            return [*ops, *self.free("reduce")]
        shared = self.keep_share(index, kind, ceil_div(unit.trained, self.layout.degree), REDUCE, whole=self.layout.unsharded)
        return [*ops, shared[0], *self.free("reduce"), *self.free(accumulated_of(index)), *shared[1:]]

    def _of_root(self) -> list[int]:
        return [index for index, is_root in enumerate(self.in_root) if is_root and self.step.made(index)]

    def backward_done(self) -> list[Op]:
        """The root's gradients are shared, and nothing waits any more."""
        ops = self._share(-1)
        for slot in self.living():
            ops += self._reshard(slot) if slot.startswith("unit/") else []
        freed, self.freed = self.freed, []
        return [*ops, *(Reuse(slot) for slot in freed)]
