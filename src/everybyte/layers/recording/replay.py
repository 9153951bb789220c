"""Runs a tape as PyTorch would: which storages live at each instant of forward and backward.

A storage lives from the step that makes it to the last step that reads it, longer if autograd keeps it or Python holds it. Backward goes
through the steps in reverse: incoming gradient, kept tensors and new gradients live together, then the kept tensors of the step are
freed. Gradients of one value that arrive on several ways are added when their step is done, in place when nobody else holds the first
(torch/csrc/autograd/input_buffer.cpp): a gradient that is a view is held by the view's base, and is not written over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from everybyte.basics.record import Record
from everybyte.layers.recording.size import ZERO, Size
from everybyte.layers.recording.tape import Made, Region, Role, Scratch, Step, Storage, Tape, Value

GEMMS = frozenset({"linear", "matmul", "matmul_4bit", "lora", "fused_linear_cross_entropy"})
"""Steps that run on cuBLAS."""

Recompute = Literal["none", "reentrant", "non-reentrant", "selective"]
"""selective: non-reentrant, with the results kept that the layer stores."""


class Instant(Record, frozen=True):
    """A moment that may be the highest for some batch: all storages that live, and their sum."""

    size: Size
    held: tuple[Storage, ...]


class Event(Record, frozen=True):
    """A storage is made (+) or freed (-), in the order of the program."""

    made: bool
    storage: Storage


class Tally(Record, frozen=True):
    """What one layer costs: kept after forward, instants of forward and backward, gradients of its weights."""

    kept: tuple[Storage, ...]
    """Alive from this layer's forward to its backward."""
    cached: tuple[Storage, ...]
    """Cast weights that are not kept, but live to the end of forward."""
    forward: tuple[Instant, ...]
    backward: tuple[Instant, ...]
    weight_gradients: Size
    kept_size: Size
    cached_size: Size
    lingering: tuple[Storage, ...]
    """Of what is kept: what backward does not free."""
    lingering_size: Size
    output: Size
    forward_events: tuple[Event, ...]
    backward_events: tuple[Event, ...]
    start: Storage
    """The hidden states that the layer is given: an earlier layer's output."""
    end: Storage
    incoming: Storage | None
    """The gradient of the output that backward is given."""
    outgoing: Storage | None
    """The gradient of the input that backward leaves behind."""
    passed: tuple[Storage, ...]
    """Gradients of what other parts of the network made (encoder states): they wait for the backward of those parts."""
    forward_gemm: int
    """Position in `forward_events` of the first matrix product; cuBLAS asks for its workspace there, behind the
    product's result (ATen/native/cuda/Blas.cpp: the result is made before the handle is asked for). -1: there is none."""
    backward_gemm: int
    gradients: tuple[Storage, ...]
    """The gradients of its weights; `weight_gradients` is their sum."""
    letters: tuple[tuple[str, int], ...]
    """Sizes of the layer by their letters."""


class _Living:
    """The set of living storages, with the instants worth keeping and the order of events."""

    def __init__(self) -> None:
        self.alive: dict[Storage, None] = {}
        self.total = ZERO
        self.instants: list[Instant] = []
        self.events: list[Event] = []
        self.gemm = -1

    def add(self, storages: Iterable[Storage]) -> None:
        for storage in storages:
            if storage not in self.alive and not storage.persistent:
                self.alive[storage] = None
                self.total = self.total + storage.size
                self.events.append(Event(True, storage))

    def see(self, step: Step) -> None:
        """Remembers where the first matrix product runs, once its result has been allocated."""
        if self.gemm < 0 and step.what in GEMMS:
            self.gemm = len(self.events)

    def drop(self, storages: Iterable[Storage]) -> None:
        for storage in storages:
            if storage in self.alive:
                del self.alive[storage]
                self.total = self.total - storage.size
                self.events.append(Event(False, storage))

    def mark(self) -> None:
        """Keeps this instant unless one already kept is at least as high for every batch."""
        if any(i.size.covers(self.total) for i in self.instants):
            return
        self.instants = [i for i in self.instants if not self.total.covers(i.size)]
        self.instants.append(Instant(self.total, tuple(self.alive)))


def scratch(step: Step, sizes: Scratch, role: Role = "temporary") -> list[Storage]:
    """Storages for a kernel's workspace, if it has one."""
    several = sizes if isinstance(sizes, tuple) else (sizes,)
    return [Storage(size, step.place, f"workspace of {step.what}", (), step.outputs[0].dtype, role=role) for size in several if size]


def run_forward(tape: Tape, start: Sequence[Storage], living: _Living, keep: set[Storage], output: Storage, stop: int | None = None) -> None:
    """Forward: marks each step; leaves alive what is in `keep` and the output. `stop`: the step before which it is broken off."""
    last: dict[Storage, int] = {}
    for index, step in enumerate(tape.steps):
        for value in (*step.inputs, *step.outputs):
            last[value.storage] = index
    for storage in start:
        # the caller's variable holds the input until the layer returns
        last[storage] = len(tape.steps)
    living.add(start)
    made: dict[Storage, None] = {}
    for index, step in enumerate(tape.steps[:stop]):
        workspace = scratch(step, step.scratch)
        made |= dict.fromkeys(v.storage for v in step.outputs)
        living.add(v.storage for v in step.outputs)
        living.see(step)
        living.add(workspace)
        living.mark()
        living.drop(workspace)
        ended = {v.storage for v in (*step.inputs, *step.outputs) if last[v.storage] == index}
        living.drop(s for s in ended if s not in keep and not s.cached and s is not output)
    living.drop(s for s in start if s not in keep and not s.cached and s is not output)
    if stop is not None:
        living.drop(s for s in made if s not in keep and not s.cached)


def early_stop(tape: Tape) -> int:
    """Where a recomputed forward is broken off: as soon as all that autograd keeps is there again, and before the last operation itself runs
    if it keeps nothing but what it is given (torch/utils/checkpoint.py `set_checkpoint_early_stop`)."""
    last = max((index for index, step in enumerate(tape.steps) if step.saved), default=-1)
    made = {v.storage for v in tape.steps[last].outputs} if last >= 0 else set()
    return last + 1 if last >= 0 and made.intersection(tape.steps[last].saved) else max(last, 0)


def run_backward(
    tape: Tape, output: Value, gradient: Storage | None, living: _Living, held: set[Storage], keep_gradients: bool, *, unpacks: bool = False
) -> dict[Value, Storage]:
    """Backward: marks each step. `held` storages stay alive; returns the gradients of the values that nothing on the tape made. `unpacks`: what a step
    keeps was recomputed for it alone (torch/utils/checkpoint.py: a holder lets go of what it gives), and goes before its results are summed or cast."""
    keepers = _keepers(tape)
    owners: dict[Storage, int] = {}
    for storage in (s for kept in keepers for s in kept):
        owners[storage] = owners.get(storage, 0) + 1
    arrived: dict[Value, Storage] = {}
    weights = _WeightGradients(tape, keep_gradients)
    if gradient is not None:
        arrived[output.source] = gradient
        living.add((gradient,))
    for index, step in reversed(list(enumerate(tape.steps))):
        for region in tape.regions:
            if region.until == index:
                _run_again(tape, region, living)
        incoming = list(dict.fromkeys(arrived.pop(o.source) for o in step.outputs if o.source in arrived))
        started = bool(incoming) or (gradient is None and output in step.outputs)
        alone = [s for s in keepers[index] if unpacks and owners[s] == 1 and not s.lingers and s not in held and s not in arrived.values()]
        new = _make(step, incoming, arrived, living, held, alone) if started and step.made else []
        fresh = {storage for _, storage in new}
        still = set(arrived.values()) | held | fresh
        for storage in keepers[index]:
            owners[storage] -= 1
            if owners[storage] == 0 and not storage.lingers and storage not in still and not weights.holds(storage):
                living.drop((storage,))
        living.drop(s for s in incoming if s not in still)
        _add_up(new, arrived, living, held, weights)
    living.drop(s for s in held if s not in arrived.values() and not s.lingers)
    return arrived


class _WeightGradients:
    """Gradients of weights during backward. A weight that several steps use has one, the sum, and the optimizer or accumulation takes it when the
    last has come."""

    def __init__(self, tape: Tape, keep: bool) -> None:
        self.keep = keep
        self.sums: dict[Storage, Storage] = {}
        self.waiting: dict[Storage, int] = {}
        for step in tape.steps:
            for made in step.made:
                if made.to.storage.weight:
                    self.waiting[made.to.storage] = self.waiting.get(made.to.storage, 0) + 1

    def holds(self, storage: Storage) -> bool:
        """Whether a storage stays as the gradient of a weight (one that was written over a tensor which forward kept)."""
        return self.keep and storage in self.sums.values()

    def arrive(self, weight: Storage, fresh: Storage, living: _Living) -> None:
        """One more gradient of a weight."""
        first = self.sums.get(weight)
        self.sums[weight] = fresh if first is None else _sum(first, fresh, living, in_place=not first.view)
        if first is not None:
            living.drop(s for s in (first, fresh) if s is not self.sums[weight])
        self.waiting[weight] -= 1
        if self.waiting[weight]:
            return
        if weight.shared_table:
            total = _sum(self.sums[weight], fresh, living, in_place=weight.shared_table == "in place")
            living.drop({total, self.sums[weight]})
        elif not self.keep:
            living.drop((self.sums[weight],))


def _sum(first: Storage, fresh: Storage, living: _Living, *, in_place: bool) -> Storage:
    """The sum of two gradients, written over the first or new."""
    if in_place:
        return first
    summed = Storage(first.size, first.place, first.what, first.dims, first.dtype, role=first.role)
    living.add((summed,))
    living.mark()
    return summed


def _make(
    step: Step, incoming: list[Storage], arrived: dict[Value, Storage], living: _Living, held: set[Storage], unpacked: list[Storage]
) -> list[tuple[Value, Storage]]:
    """The gradients that one step makes, and what they are the gradients of. `unpacked`: of what it keeps, what is gone when its kernel has returned."""
    new: list[tuple[Value, Storage]] = []
    for made in step.made:
        weight = made.to.storage.weight
        role: Role = "gradient" if weight else "autograd_detail"
        what = "gradient of weight" if weight else f"gradient of {made.to.storage.what}"
        fresh = made.into or (
            incoming[0] if made.size is None else Storage(made.size, step.place, what, made.to.dims, made.to.dtype, role=role, view=made.view)
        )
        new.append((made.to.source, fresh))
    workspace = scratch(step, step.back_scratch)
    if step.piecewise:
        living.add(workspace)
        living.mark()
        living.drop(workspace)
        others = {fresh for _, fresh in new} | set(arrived.values()) | held
        living.drop(s for s in incoming if s not in others)
        workspace = []
    late = [fresh for made, (_, fresh) in zip(step.made, new, strict=True) if made.late]
    early = [s for _, s in new if s not in late]
    living.add(early[:1])
    living.see(step)
    living.add(early[1:])
    living.add(workspace)
    if late:
        living.mark()
        living.drop(unpacked)
        living.add(late)
    living.mark()
    living.drop(workspace)
    return new


def _add_up(new: list[tuple[Value, Storage]], arrived: dict[Value, Storage], living: _Living, held: set[Storage], weights: _WeightGradients) -> None:
    """Gradients that a step has made come to those that came before."""
    for place, (to, fresh) in enumerate(new):
        if to.storage.weight:
            weights.arrive(to.storage, fresh, living)
            continue
        first = arrived.get(to)
        if first is None:
            arrived[to] = fresh
            continue
        waiting = {storage for _, storage in new[place + 1 :]}
        owners = sum(s is first for s in arrived.values())
        arrived[to] = _sum(first, fresh, living, in_place=not (first.view or first in held or owners > 1 or first in waiting))
        others = set(arrived.values()) | held | waiting
        living.drop(s for s in (fresh, first) if s not in others)


def _inside(tape: Tape, region: Region) -> set[Storage]:
    """What the steps of a region make."""
    return {v.storage for step in tape.steps[region.first : region.last] for v in step.outputs}


def _dropped(tape: Tape, saved: set[Storage]) -> set[Storage]:
    """Of what autograd keeps: what regions that run again make, and nobody outside keeps or it is thrown away."""
    gone: set[Storage] = set()
    for region in tape.regions:
        steps = [step for i, step in enumerate(tape.steps) if not region.first <= i < region.last]
        outside = set() if region.discards else {s for step in steps for s in step.saved}
        gone |= (_inside(tape, region) - {v.storage for step in steps for v in step.outputs} - outside) & saved
    return gone


def _results(tape: Tape, region: Region) -> set[Storage]:
    """What a region makes and steps behind it read, or nobody on the tape does."""
    read = {v.storage for step in tape.steps[region.first : region.last] for v in step.inputs}
    behind = {v.storage for step in tape.steps[region.last :] for v in step.inputs}
    return {s for s in _inside(tape, region) if s in behind or s not in read}


def _keepers(tape: Tape) -> list[list[Storage]]:
    """Of each step, what may go when its backward is done: what it keeps itself; before a region, also what that was given, and its results,
    which torch.utils.checkpoint and Megatron-LM's CheckpointFunction hold until the backward of the region is done."""
    found = [list(step.saved) for step in tape.steps]
    for region in tape.regions:
        found[region.first] += _given(tape, region)
        if not region.discards:
            found[region.first] += _results(tape, region)
    return found


def _given(tape: Tape, region: Region) -> set[Storage]:
    """What a region is given and keeps to run again."""
    made = _inside(tape, region)
    return {v.storage for step in tape.steps[region.first : region.last] for v in step.inputs if not v.storage.persistent} - made


def _run_again(tape: Tape, region: Region, living: _Living) -> None:
    """Forward of a region in backward: leaves alive what its own steps keep, and its result where that had been thrown away."""
    steps = tape.steps[region.first : region.last]
    keep = {s for step in steps for s in step.saved}
    keep |= {s for step in tape.steps[region.last :] for s in step.saved} if region.discards else _results(tape, region)
    last = {v.storage: index for index, step in enumerate(steps) for v in (*step.inputs, *step.outputs)}
    given = _given(tape, region)
    for index, step in enumerate(steps):
        workspace = scratch(step, step.scratch)
        living.add([*(v.storage for v in step.outputs), *workspace])
        living.mark()
        living.drop(workspace)
        living.drop(s for s in {v.storage for v in (*step.inputs, *step.outputs)} - keep - given if last[s] == index)


def tally(tape: Tape, start: Value, output: Value, recompute: Recompute = "none", *, keep_gradients: bool = True, is_last: bool = False) -> Tally:
    """The cost of a layer whose steps are on `tape`, from the value it is given to the value it returns.

    `is_last`: the output is the loss, from which backward starts without an incoming gradient.
    """
    trains = tape.setup.grad
    if start.storage.kept_before and trains and recompute == "none":
        start.storage.persistent = start.storage.outside = True
    saved = {s for step in tape.steps for s in step.saved if not s.persistent} if trains else set()
    pinned = set(tape.pinned)
    first = _Living()
    kept: set[Storage] = ({start.storage} if recompute != "none" and not start.storage.persistent else saved) | pinned
    if recompute == "selective":
        kept.update(tape.stored)
    if tape.regions and trains and recompute == "none":
        kept = (kept - _dropped(tape, saved)).union(*(_given(tape, region) for region in tape.regions))
    run_forward(tape, (start.storage, *tape.shared), first, kept, output.storage)
    cached = tuple(s for s in first.alive if s.cached and s not in kept)
    left = tuple(s for s in first.alive if s in kept)
    second = _Living()
    gradients: tuple[Storage, ...] = ()
    incoming = outgoing = None
    passed: tuple[Storage, ...] = ()
    if trains:
        if not is_last and output.grad:
            incoming = Storage(output.storage.size, tape.path, "gradient of output", output.dims, output.dtype, role="autograd_detail")
        outgoing, passed = _replay_backward(tape, start, output, recompute, second, left, saved | pinned, keep_gradients, incoming)
        gradients = _weight_gradients(tape)
    lingering = tuple(s for s in left if s.lingers)
    return Tally(
        left,
        cached,
        tuple(first.instants),
        tuple(second.instants),
        Size.total(s.size for s in gradients),
        Size.total(s.size for s in left),
        Size.total(s.size for s in cached),
        lingering,
        Size.total(s.size for s in lingering),
        output.storage.size,
        tuple(first.events),
        tuple(second.events),
        start.storage,
        output.storage,
        incoming,
        outgoing,
        passed,
        first.gemm,
        second.gemm,
        gradients,
        letters(tape),
    )


def _weight_gradients(tape: Tape) -> tuple[Storage, ...]:
    """One gradient of each weight that backward makes one of, and that is counted here. The sum of several is no view."""
    made: dict[Storage, list[Made]] = {}
    for m in (m for step in tape.steps for m in step.made if m.to.storage.weight and not m.to.storage.shared_table):
        made.setdefault(m.to.storage, []).append(m)
    return tuple(
        Storage(
            m.into.size if m.into is not None else m.size or ZERO,
            weight.place,
            "gradient of weight",
            m.to.dims,
            m.to.dtype,
            role="gradient",
            view=m.view and not others,
        )
        for weight, (*others, m) in made.items()
    )


def letters(tape: Tape) -> tuple[tuple[str, int], ...]:
    """The letters of the layer's fixed sizes, as its weights, its caches and its values have them; the first size where a letter has several."""
    shapes = [*(p.dims for p in tape.parameters), *(c.dims for c in tape.caches), *(v.dims for step in tape.steps for v in step.outputs)]
    found: dict[str, int] = {}
    for dim in (d for dims in shapes for d in dims):
        if not dim.axes and dim.letter.isidentifier():
            found.setdefault(dim.letter, dim.size)
    return tuple(found.items())


def _replay_backward(
    tape: Tape,
    start: Value,
    output: Value,
    recompute: Recompute,
    living: _Living,
    left: tuple[Storage, ...],
    saved: set[Storage],
    keep_gradients: bool,
    incoming: Storage | None,
) -> tuple[Storage | None, tuple[Storage, ...]]:
    """Backward of a layer, with its forward run again before it if it is recomputed. Returns the gradient of its input, and those of what other parts
    of the network made."""
    held = set(tape.pinned)
    living.add(left)
    if incoming is not None:
        living.add((incoming,))
    if recompute != "none":
        living.add(tape.shared)
        stop = None if recompute == "reentrant" else early_stop(tape)
        run_forward(tape, (), living, saved | {start.storage}, output.storage, stop)
        if recompute == "selective":
            held.update(s for s in tape.stored if s not in saved)
        living.drop(s for s in living.alive.copy() if s.cached and s not in saved)
        held.add(start.storage)
        if recompute == "reentrant":
            # CheckpointFunction.backward holds outputs and their gradients while the inner backward runs
            held.add(output.storage)
            held |= {incoming} if incoming is not None else set()
    arrived = run_backward(tape, output, incoming, living, held, keep_gradients, unpacks=recompute in ("non-reentrant", "selective"))
    living.drop(tape.shared)
    return arrived.pop(start.source, None), tuple(arrived.values())
