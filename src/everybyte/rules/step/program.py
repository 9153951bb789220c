"""A step as a program: what is allocated and freed around the layers that run, in order, with loops over equal layers.

A layout writes the program of its ranks once (`Moves`). The peaks and rows of the ledger (`timeline`) and the allocations that an allocator replays
(`allocation_program`) are readings of it. A loop is closed in one go: each round adds as much as the one before, so that the highest instant is in the
first round or in the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from everybyte.basics.record import Record
from everybyte.ledger.build import Line
from everybyte.rules.step.row import StepRow


class Make(NamedTuple):
    """A tensor is made. Those of one slot have one size, but for slots that are emptied before."""

    slot: str
    bytes: int
    stream: int = 0
    parts: tuple[int, ...] = ()
    """Bytes of the tensors that it is, where it is several."""
    casts: bool = False
    """Each of them is made of another of the same size, which goes at once."""


class Free(NamedTuple):
    """The oldest tensor of a slot is freed. `waits`: its memory is not given to others before `Reuse`."""

    slot: str
    bytes: int
    waits: bool = False


class Reuse(NamedTuple):
    """The work that used the tensor of a slot which has waited longest is done: its memory can be had again."""

    slot: str


class Run(NamedTuple):
    """One copy of a segment runs, forward or backward."""

    segment: int
    backward: bool


class Hold(NamedTuple):
    """The copy of a segment that has just gone back keeps its input until backward ends; `gradient`: and what came back to it."""

    segment: int
    gradient: bool


class Spend(NamedTuple):
    """The gradients that a copy of a segment has just made are used up."""

    segment: int


class Leave(NamedTuple):
    """What a copy of a segment keeps goes to host memory."""

    segment: int


class Fetch(NamedTuple):
    """It comes back."""

    segment: int


class Pass(NamedTuple):
    """A layer has left the gradient of what another part of the network made (encoder states): later ones are added to it
    (torch/csrc/autograd/input_buffer.cpp)."""

    segment: int
    what: str


class Merge(NamedTuple):
    """That other part goes back: the gradients that waited for it are its own."""

    segment: int
    what: str


class Empty(NamedTuple):
    """torch.cuda.empty_cache()."""


class Return(NamedTuple):
    """The backward of a reentrantly recomputed copy returns: its input, its result and the result's gradient go."""

    segment: int


Op = Make | Free | Reuse | Run | Leave | Fetch | Pass | Merge | Hold | Spend | Return | Empty


class Loop(NamedTuple):
    """What is done around one copy of a segment, for so many copies."""

    copies: int
    body: tuple[Op, ...]


ShardEvent = Literal["gather", "forward", "regather", "backward", "reduce"]
"""A layer's weights are being gathered; it runs forward. In backward: those of the next layer are being gathered; it runs backward; its gradients
are on their way to the other ranks."""


class Section(NamedTuple):
    """What one segment does in forward or in backward, all copies of it."""

    segment: int
    backward: bool
    loops: tuple[Loop, ...]


class Place(Record, frozen=True):
    """What of a segment its place in a program depends on."""

    copies: int
    tower: str
    offloaded: bool
    passed: tuple[str, ...]
    """What its backward leaves for other parts of the network."""
    returns: bool


def outline_of(step: StepRow) -> tuple[Place, ...]:
    """The places of a row."""
    return tuple(Place(s.copies, s.tower, s.offloaded, tuple(one.what for one in s.tally.passed), r) for s, r in zip(step.row, step.returns, strict=True))


@lru_cache(maxsize=4096)
def undisturbed(outline: tuple[Place, ...], most: int) -> tuple[tuple[Section, ...], tuple[Section, ...]]:
    """Forward and backward of a row with which nothing moves: the same for all rows of this outline. `most`: as in `Writer`."""
    writer = Writer(outline, most)
    return writer.forward(), writer.backward()


class Writer:
    """Writes the program of a row. The base class has nothing around the layers: one GPU. `most`: copies whose kept tensors are on their way to host
    memory at a time."""

    def __init__(self, outline: tuple[Place, ...], most: int) -> None:
        self.outline, self.most = outline, most
        self.slots: dict[str, list[int]] = {}
        """Bytes of what lives, by slot."""
        self.syncs = True
        """Whether the ranks share gradients in this micro-batch's backward; not under no_sync."""
        self._leaving: list[int] = []
        self._waiting: dict[str, int] = {}

    # -- for those who write ------------------------------------------------------------------------------------------------
    def make(self, slot: str, nbytes: int, stream: int = 0) -> list[Op]:
        """A tensor under a slot, if it has bytes."""
        if not nbytes:
            return []
        self.slots.setdefault(slot, []).append(nbytes)
        return [Make(slot, nbytes, stream)]

    def free(self, slot: str, *, waits: bool = False) -> list[Op]:
        """The end of the oldest one of a slot, if there is one."""
        held = self.slots.get(slot)
        return [Free(slot, held.pop(0), waits)] if held else []

    def free_all(self, slots: Iterable[str], *, waits: bool = False) -> list[Op]:
        """The end of all of some slots."""
        return [op for slot in slots for _ in range(len(self.slots.get(slot, ()))) for op in self.free(slot, waits=waits)]

    def living(self) -> list[str]:
        """Slots that hold something."""
        return [slot for slot, held in self.slots.items() if held]

    # -- what a layout says -------------------------------------------------------------------------------------------------
    def before_forward(self, index: int, copy: int) -> list[Op]:
        """Before a copy of a segment runs."""
        return []

    def forward_done(self) -> list[Op]:
        """Behind the last layer of forward."""
        return []

    def before_backward(self, index: int, copy: int) -> list[Op]:
        """Before a copy of a segment goes back; `copy` counts down."""
        return []

    def after_backward(self, index: int, copy: int) -> list[Op]:
        """When it has gone back."""
        return []

    def held(self, index: int, copy: int) -> list[Op]:
        """What is held of it until backward ends."""
        return []

    def backward_done(self) -> list[Op]:
        """Behind the last layer of backward."""
        return []

    def accumulated(self) -> list[Op]:
        """What earlier micro-batches left, where the layout makes its place."""
        return []

    def rows(self, index: int, moment: ShardEvent, copy: int, living: Mapping[str, tuple[int, int]]) -> Iterable[Line]:
        """The ledger's rows of what lives beside a copy of a segment that runs. `living`: of each slot, how many tensors and their bytes together."""
        return ()

    # -- the program --------------------------------------------------------------------------------------------------------
    def forward(self) -> tuple[Section, ...]:
        """The sections of forward in their order."""
        found = [Section(index, False, self._rounds(segment.copies, self._forward_of(index))) for index, segment in enumerate(self.outline)]
        last = found[-1]
        rest = Loop(1, (*(Leave(index) for index in self._leaving), *self.forward_done()))
        return (*found[:-1], last._replace(loops=(*last.loops, rest)))

    def backward(self) -> tuple[Section, ...]:
        """The sections of backward in their order, the last segment first."""
        row = self.outline
        found = [Section(index, True, self._rounds(row[index].copies, self._backward_of(index))) for index in reversed(range(len(row)))]
        last = found[-1]
        rest = Loop(1, (*self._merge(), *self.backward_done()))
        return (*found[:-1], last._replace(loops=(*last.loops, rest)))

    def _forward_of(self, index: int) -> Callable[[int], list[Op]]:
        is_offloaded, most = self.outline[index].offloaded, self.most

        def one(done: int) -> list[Op]:
            ops = [*self.before_forward(index, done), Run(index, backward=False)]
            if is_offloaded:
                self._leaving.append(index)
            return [*ops, Leave(self._leaving.pop(0))] if len(self._leaving) > most else ops

        return one

    def _backward_of(self, index: int) -> Callable[[int], list[Op]]:
        segment = self.outline[index]
        is_other = index + 1 < len(self.outline) and self.outline[index + 1].tower != segment.tower

        def one(done: int) -> list[Op]:
            copy = segment.copies - 1 - done
            ops = self._merge() if is_other and not done else []
            ops += self.before_backward(index, copy)
            ops += [Fetch(index)] if segment.offloaded else []
            ops.append(Run(index, backward=True))
            ops += self._pass_on(index)
            ops += self.after_backward(index, copy)
            return [*ops, *([Return(index)] if segment.returns else ()), *self.held(index, copy)]

        return one

    def _pass_on(self, index: int) -> list[Op]:
        new = [what for what in self.outline[index].passed if what not in self._waiting]
        self._waiting.update(dict.fromkeys(new, index))
        return [Pass(index, what) for what in new]

    def _merge(self) -> list[Op]:
        waiting, self._waiting = self._waiting, {}
        return [Merge(index, what) for what, index in waiting.items()]

    def queued(self) -> tuple[object, ...]:
        """What waits in queues, which a copy that all others follow leaves as it finds it."""
        return tuple(self._leaving)

    def _rounds(self, copies: int, one: Callable[[int], list[Op]]) -> tuple[Loop, ...]:
        """What `one` writes for each copy in turn. When two write the same, and nothing waits that did not, the others do as well, but for the last, whose
        neighbour is another."""
        found: list[Loop] = []
        done = 0
        while done < copies:
            queued = self.queued()
            ops = tuple(one(done))
            done += 1
            more = copies - done - 1
            if found and found[-1].body == ops and self.queued() == queued and more > 0:
                self._skip(ops, more)
                done += more
                found.append(Loop(more + 1, ops))
            else:
                found.append(Loop(1, ops))
        return tuple(found)

    def _skip(self, ops: tuple[Op, ...], rounds: int) -> None:
        """As many more rounds as these, each of which changes what lives as this one did."""
        change: dict[str, int] = {}
        for op in ops:
            if isinstance(op, (Make, Free)):
                change[op.slot] = change.get(op.slot, 0) + (1 if isinstance(op, Make) else -1)
        for slot, more in change.items():
            sizes = self.slots[slot]
            if more > 0:
                sizes.extend([sizes[-1]] * (rounds * more))
            elif more < 0:
                del sizes[: -rounds * more]


class Moves(Writer):
    """Writes what a layout does around the layers of a step."""

    def __init__(self, step: StepRow) -> None:
        super().__init__(outline_of(step), step.recipe.recompute.in_flight or 0)
        self.step = step

    def program(self) -> tuple[tuple[Section, ...], tuple[Section, ...]]:
        """Forward and backward."""
        return self.forward(), self.backward()


class Still(Moves):
    """Nothing is made or freed around the layers."""

    def program(self) -> tuple[tuple[Section, ...], tuple[Section, ...]]:
        """Written once for all rows of the outline."""
        return undisturbed(self.outline, self.most)


PASSING = "gathered/"
"""Ids of what is made anew for every layer, though it has the same size in the next."""


Lines = Callable[[int, ShardEvent, int], Iterable[Line]]
"""(segment, moment, copy) -> what is beside it."""


class Switched(Moves):
    """Moves of a layout that says as rows what it has beside a layer that runs forward or back: between two layers what differs is freed and made."""

    def __init__(self, step: StepRow, lines: Lines, stream: int = 0) -> None:
        super().__init__(step)
        self.lines = lines
        self.stream = stream
        """On which what comes and goes with each layer is made."""

    def _switch(self, lines: Iterable[Line]) -> list[Op]:
        wanted = {line.id: line.bytes for line in lines if line.bytes}
        ops: list[Op] = []
        for slot in self.living():
            if wanted.get(slot) != self.slots[slot][0] or slot.startswith(PASSING):
                ops += self.free(slot)
        for slot, nbytes in wanted.items():
            if not self.slots.get(slot):
                ops += self.make(slot, nbytes, self.stream if slot.startswith(PASSING) else 0)
        return ops

    def before_forward(self, index: int, copy: int) -> list[Op]:
        """What the layer before had goes, what this one has comes."""
        return self._switch(self.lines(index, "forward", copy))

    def forward_done(self) -> list[Op]:
        """What came and went with each layer is gone."""
        return self.free_all(slot for slot in self.living() if slot.startswith(PASSING))

    def before_backward(self, index: int, copy: int) -> list[Op]:
        """As in forward."""
        return self._switch(self.lines(index, "backward", copy))

    def backward_done(self) -> list[Op]:
        """Nothing is beside a layer any more."""
        return self.free_all(self.living())

    def rows(self, index: int, moment: ShardEvent, copy: int, living: Mapping[str, tuple[int, int]]) -> Iterable[Line]:
        """The rows that the layout says."""
        side: ShardEvent = "forward" if moment in ("gather", "forward") else "backward"
        return [line for line in self.lines(index, side, copy) if line.id in living]
