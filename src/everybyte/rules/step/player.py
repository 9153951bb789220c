"""Plays the program of a step tensor by tensor: allocations and frees with a key for each that lives, as an allocator is asked for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from everybyte.basics.allocations import EMPTY_CACHE, STREAM_BITS, Event, Played, Rows, finished, flat, used_on
from everybyte.rules.accounting.overhead import cublas_workspace
from everybyte.rules.step.parts import Part, parts_of
from everybyte.rules.step.program import Empty, Fetch, Free, Hold, Leave, Make, Merge, Op, Pass, Return, Reuse, Run, Section, Spend
from everybyte.rules.step.timeline import StepTimeline, written


class Player:
    """Plays forward and backward of micro-batches of one step."""

    def __init__(self, timeline: StepTimeline, compute_capability: str) -> None:
        self.timeline = timeline
        self.compute_capability = compute_capability
        self.next_key = 0
        self.items: list[Event | Played] = []
        """What has been played by now. Layers that run put their rows here as they are: tens of thousands of events would be most of what an answer costs."""
        self.slots: dict[str, list[tuple[int, ...]]] = {}
        """Keys of what lives in the slots of the program; several where it is several tensors."""
        self.waiting: dict[str, list[int]] = {}
        """Keys of what was freed, but whose memory waits, by slot."""
        self.gradients: list[int] = []
        self.made: dict[int, list[list[int]]] = {}
        """Of each segment, the gradients that its copies have made in this backward."""
        self.passed: dict[str, int] = {}
        """Gradients of what another part of the network made."""
        self.outlived: list[int] = []
        """What the graph of the last micro-batch still holds."""
        self.done: list[tuple[Part, list[int]]] = []
        """Layers that have run forward, with their keys."""
        self.flowing = 0
        """The hidden states, or their gradient, on their way from layer to layer; and whether the layer that made them keeps them."""
        self.keeps = False
        self.merged: list[int] = []
        """What towers have made, until the hidden states have it."""
        self.left: set[int] = set()
        """Which of `done` have gone to host memory."""
        self.held: set[int] = set()
        """What hooks keep of layers that have gone back."""
        self.again: dict[int, int] = {}
        """Of these, what recomputation has made once more."""
        self.returning: list[int] = []
        """What a reentrant backward has to its end."""
        self.waiting_handles = timeline.recipe.handles
        """cuBLAS handles without a workspace yet: forward's thread asks at its first product, autograd's at its own."""
        self.parts = parts_of(self.timeline.row, self.timeline.points)

    def _make(self, nbytes: int) -> Event:
        self.next_key += 1
        return self.next_key, nbytes

    def _make_all(self, sizes: Sequence[int]) -> None:
        """Tensors of these sizes, one after the other."""
        first = self.next_key + 1
        self.next_key += len(sizes)
        self.items += zip(range(first, self.next_key + 1), sizes, strict=True)

    def _end(self, keys: Iterable[int]) -> None:
        """Frees what lives under keys."""
        self.items += [(key, 0) for key in keys]

    def _workspace(self, handles_left: int) -> None:
        """The workspace of a cuBLAS handle that multiplies for the first time. It stays, in the middle of whatever is cached then."""
        if self.waiting_handles > handles_left:
            self.waiting_handles = handles_left
            self.items.append(self._make(cublas_workspace(self.compute_capability)))

    def workspaces(self) -> None:
        """Those of all cuBLAS handles."""
        for left in range(self.waiting_handles - 1, -1, -1):
            self._workspace(left)

    def free_gradients(self) -> None:
        """zero_grad(set_to_none=True)."""
        self._end(self.gradients)
        self.gradients = []

    # -- a micro-batch ------------------------------------------------------------------------------------------------------
    def forward_backward(self, *, syncs: bool = True) -> None:
        """Forward and backward of one micro-batch. Gradients of weights stay; hidden states and their gradients are handed on from layer to layer."""
        timeline = self.timeline
        program = written(timeline.network, timeline.recipe.timeless, timeline.layout, syncs=syncs)
        self._sections(program.forward)
        self._free_cached(self.done[:-1])
        self.between()
        self._free_cached(self.done[-1:])
        self._sections(program.backward)
        self._end_backward()

    def between(self) -> None:
        """What runs between forward and backward."""

    def forward_alone(self) -> None:
        """A forward pass that no backward follows."""
        timeline = self.timeline
        self._sections(written(timeline.network, timeline.recipe.timeless, timeline.layout).forward)
        self._free_cached(self.done)
        self._end(key for part, keys in self.done for key in dict.fromkeys(keys[slot] for slot in part.kept))
        self._end(key for held in self.slots.values() for keys in held for key in keys)

    def _sections(self, sections: Sequence[Section]) -> None:
        for place, section in enumerate(sections):
            if not section.backward and place == len(sections) - 1:
                self._free_outlived()
            for loop in section.loops:
                for _ in range(loop.copies):
                    self._round(loop.body)
        if self.flowing and not self.keeps:
            self._end((self.flowing,))
        self.flowing, self.keeps = 0, False

    def _round(self, body: tuple[Op, ...]) -> None:
        """What is done around one copy of a layer."""
        for op in body:
            if isinstance(op, Run):
                if op.backward:
                    self._back(op.segment, body)
                else:
                    self._run(op.segment)
            elif isinstance(op, (Leave, Fetch)):
                self._moved(op)
            elif isinstance(op, Spend):
                self._end(self.made[op.segment].pop())
            elif isinstance(op, Merge):
                self._end((self.passed.pop(op.what),))
            elif isinstance(op, Return):
                self._end(self.returning)
                self.returning = []
            else:
                self._written((op,))

    def _written(self, ops: Iterable[Op]) -> None:
        """What is made and freed in slots."""
        for op in ops:
            if isinstance(op, Make):
                keys = []
                for size in op.parts or (op.bytes,):
                    cast = self._on(op.stream, size)
                    if op.casts:
                        self.items.append(cast)
                    event = self._on(op.stream, size)
                    keys.append(event[0])
                    self.items.append(event)
                    if op.casts:
                        self._end((cast[0],))
                self.slots.setdefault(op.slot, []).append(tuple(keys))
            elif isinstance(op, Free):
                for key in self.slots[op.slot].pop(0):
                    if op.waits:
                        # the work that the compute stream has been given by now stands as a stream of its own
                        self.items.append(used_on(key, key))
                        self.waiting.setdefault(op.slot, []).append(key)
                    self._end((key,))
            elif isinstance(op, Reuse):
                self.items.append(finished(self.waiting[op.slot].pop(0)))
            elif isinstance(op, Empty):
                self.items.append(EMPTY_CACHE)
            elif isinstance(op, Spend):
                self.free_gradients()

    def _on(self, stream: int, nbytes: int) -> Event:
        key, size = self._make(nbytes)
        return (stream << STREAM_BITS) + key, size

    def _run(self, index: int) -> None:
        """One copy of a segment runs forward."""
        part = self.parts[index]
        if part.starts_anew and self.flowing:
            self.merged += [] if self.keeps else [self.flowing]
            self.flowing = 0
        keys = self._keys(part, self.flowing)
        self._play(part.forward, keys, part.forward_product, self.timeline.recipe.handles - 1)
        self.flowing, self.keeps = keys[part.end] if part.end >= 0 else 0, part.keeps_end
        self.done.append((part, keys))
        if not part.tower:
            self._end(self.merged)
            self.merged = []

    def _back(self, index: int, body: tuple[Op, ...]) -> None:
        """The last copy of a segment that ran goes back; `body` says what stays of it."""
        part, keys = self.done.pop()
        if self.flowing and part.incoming < 0:
            self._end((self.flowing,))
        elif self.flowing:
            keys[part.incoming] = self.flowing
        elif part.incoming >= 0:
            # a network without a head, or a tower: the gradient of its output is made elsewhere
            self.items.append((keys[part.incoming], part.incoming_bytes))
        start, stays = len(self.items), self._staying(part, keys, body)
        self._play(part.backward, keys, part.backward_product, 0)
        if self.held or stays:
            played = list(flat(self.items[start:]))
            del self.items[start:]
            self._but(played, stays)
        self.made.setdefault(index, []).append([keys[slot] for slot in part.gradients])
        self.outlived += [keys[slot] for slot in part.lingering]
        waits = {op.what for op in body if isinstance(op, Pass)}
        for what, slot in part.passed:
            if what in waits:
                self.passed[what] = keys[slot]
            else:
                self._end((keys[slot],))
        self.flowing = keys[part.outgoing] if part.outgoing >= 0 else 0

    def _staying(self, part: Part, keys: list[int], body: tuple[Op, ...]) -> set[int]:
        """Keys of what a layer that goes back does not free: what hooks hold, and what a reentrant backward has to its end."""
        hold = next((op for op in body if isinstance(op, Hold)), None)
        incoming = {keys[part.incoming]} if part.incoming >= 0 else set()
        if hold is not None:
            self.held |= {keys[part.start], *(incoming if hold.gradient else ())}
        if not any(isinstance(op, Return) for op in body):
            return set()
        ends = {keys[slot] for slot in (part.start, part.end, part.incoming) if slot >= 0}
        return ends - ({keys[part.outgoing]} if part.outgoing >= 0 else set())

    def _but(self, events: list[Event], ends: set[int]) -> None:
        """Events but for the end of what stays; what recomputation makes while hooks hold the first of it has a key of its own."""
        for key, size in events:
            if size and key in self.held:
                self.again[key], _ = self._make(size)
                self.items.append((self.again[key], size))
                continue
            ended = self.again.pop(key, key) if not size else key
            if not size and ended in self.held:
                continue
            if not size and key in ends:
                self.returning.append(ended)
            else:
                self.items.append((ended, size))

    def _moved(self, op: Leave | Fetch) -> None:
        """What a layer keeps leaves the device; backward brings it back."""
        if isinstance(op, Fetch):
            part, keys = self.done[-1]
            self.items += [(keys[slot], size) for slot, size in part.offloaded]
            return
        part, keys = next((p, k) for p, k in self.done if p.index == op.segment and id(k) not in self.left)
        self.left.add(id(keys))
        self._end(keys[slot] for slot, _ in part.offloaded)

    def _end_backward(self) -> None:
        """Gradients stay, unless they have been accumulated; what hooks held goes, and the graph, unless it lives on."""
        made = [key for copies in self.made.values() for keys in copies for key in keys]
        self.made = {}
        if self.timeline.layout.lives(self.timeline.recipe) == "always":
            # but for the head's gradient of a tied table, which has waited for the embedding's
            self._end(made)
        else:
            self.gradients += made
        self._end(self.held)
        self.held, self.left = set(), set()
        for slot in [slot for slot in self.slots if slot.startswith("gradients/")]:
            self.gradients += [key for keys in self.slots.pop(slot) for key in keys]
        if not self.timeline.recipe.graph_outlives:
            self._free_outlived()

    def _free_cached(self, done: list[tuple[Part, list[int]]]) -> None:
        """What lives to the end of forward alone."""
        self._end(keys[slot] for part, keys in done for slot in part.cached)

    def _free_outlived(self) -> None:
        self._end(self.outlived)
        self.outlived = []

    def _keys(self, part: Part, flowing: int) -> list[int]:
        """A key for each storage of one layer; its input has the key of the earlier layer's output."""
        keys = list(range(self.next_key + 1, self.next_key + part.slots + 1))
        self.next_key += part.slots
        if flowing:
            keys[part.start] = flowing
        return keys

    def _play(self, rows: Rows, keys: list[int], product: int, handles_left: int) -> None:
        """The rows of a part, with the workspace of a handle whose first product runs among them."""
        if product < 0 or self.waiting_handles <= handles_left:
            self.items.append((rows, keys))
            return
        self.items.append((rows[:product], keys))
        self._workspace(handles_left)
        self.items.append((rows[product:], keys))
