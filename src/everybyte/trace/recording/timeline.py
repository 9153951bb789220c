"""A trace as a course of time: what lives at each position, in which phase the program is, and where the highest instants are."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from everybyte.allocator.settings import DEFAULT, AllocatorSettings
from everybyte.ledger.entry import Category, Phase
from everybyte.trace.recording.module_paths import INPUT, LOSS, Place, is_adapter, place_of
from everybyte.trace.recording.replay_script import changes
from everybyte.trace.request import BUFFER, BirthRow, Traced

HEAD = LOSS.partition("/")[0]
STEP = "optimizer"
"""The place of what the optimizer makes and frees in its step."""
PARAMETERS = ("parameter", "gradient", "optimizer_state")


class Instant(NamedTuple):
    """What lives after so many events, by category, in bytes."""

    position: int
    living: dict[Category, int]


class Timeline:
    """Reads a trace. Positions count events; sizes are those of the allocator's blocks."""

    def __init__(self, traced: Traced, settings: AllocatorSettings = DEFAULT) -> None:
        self.traced, self.settings = traced, settings
        self.births = {birth.id: birth for birth in traced.births}

    @cached_property
    def last_step(self) -> tuple[int, int]:
        """First and last position of the last step: states of the optimizer exist from its first event on."""
        *_, start, end = (mark.position for mark in self.traced.marks)
        return start, end

    def sizes(self) -> Iterator[tuple[int, BirthRow, int]]:
        """(position, birth, change of bytes) of each event."""
        for position, ((number, _), change) in enumerate(zip(self.traced.events, self._changes, strict=True)):
            yield position, self.births[number], change

    @cached_property
    def _changes(self) -> list[int]:
        return changes(self.traced, self.settings)

    @cached_property
    def peaks(self) -> dict[Phase, tuple[int, int]]:
        """Of each phase of the last step its highest instant: (bytes, position after the event). `between_steps` is the end."""
        start, end = self.last_step
        found: dict[Phase, tuple[int, int]] = {}
        now = 0
        for position, birth, change in self.sizes():
            if position >= end:
                break  # the program is over and gives everything back
            if position >= start and position in self.traced.stepping:
                found["optimizer"] = max(found.get("optimizer", (0, 0)), (now, position))  # a fused step makes nothing
            now += change
            if position >= start and change > 0:
                phase = self.phase_of(birth)
                if now > found.get(phase, (-1, 0))[0]:
                    found[phase] = (now, position + 1)
        found["between_steps"] = (now, end)
        order: tuple[Phase, ...] = ("forward", "loss", "backward", "optimizer", "between_steps")
        return {phase: found[phase] for phase in order if phase in found}

    def instants(self, most: int) -> list[Instant]:
        """At most so many instants of the whole trace: of each stretch of events the highest one, so that no peak is lost."""
        length = max(-(-len(self.traced.events) // most), 1)
        found: list[Instant] = []
        now: dict[Category, int] = {}
        total = highest = 0
        for position, birth, change in self.sizes():
            category = self.category_of(birth)
            now[category] = now.get(category, 0) + change
            total += change
            if position % length == 0:
                found.append(Instant(position, dict(now)))
                highest = total
            elif total > highest:
                found[-1] = Instant(position, dict(now))
                highest = total
        return found

    def living(self, position: int) -> dict[int, int]:
        """Bytes of each birth that lives after so many events."""
        alive: dict[int, int] = {}
        for (number, _), change in zip(self.traced.events[:position], self._changes, strict=False):
            if change > 0:
                alive[number] = change
            else:
                alive.pop(number, None)
        return alive

    @cached_property
    def _backwards(self) -> list[int]:
        """Where backward passes begin."""
        births = self.traced.births
        return [birth.born for before, birth in itertools.pairwise(births) if birth.phase == "backward" != before.phase]

    def backward_before(self, position: int) -> int:
        """Where the backward pass began that runs at a position, or ran last before it."""
        at = bisect_right(self._backwards, position)
        return self._backwards[at - 1] if at else 0

    @cached_property
    def parameter_shapes(self) -> frozenset[tuple[int, ...]]:
        """Shapes of the parameters."""
        return frozenset(birth.shape for birth in self.traced.births if birth.category == "parameter")

    def running(self, position: int) -> Place:
        """Where the program is after so many events."""
        return place_of(self.births[self.traced.events[position - 1][0]].module)

    def goes_back(self, position: int) -> bool:
        """Whether backward runs at a position."""
        return self.births[self.traced.events[position - 1][0]].phase == "backward"

    def gone_back(self, position: int) -> frozenset[str]:
        """The pieces of the network whose backward is done, while another one's runs."""
        if not self.goes_back(position):
            return frozenset()
        return frozenset(self._pieces(position, self.backward_before(position))) - {self.running(position).piece}

    def _pieces(self, position: int, start: int = 0) -> Iterator[str]:
        """The pieces that made something from `start` to `position`, the last first."""
        for number, nbytes in reversed(self.traced.events[start:position]):
            if nbytes > 0:
                yield place_of(self.births[number].module).piece

    @cached_property
    def _phases(self) -> dict[int, Phase]:
        """The phase of each birth. What the head makes, forward and backward, belongs to the loss; so does what the program makes outside all modules
        behind forward and before backward has come to a module."""
        found: dict[int, Phase] = {}
        before, in_modules = "", False
        for birth in self.traced.births:
            if birth.phase != before:
                before, in_modules = birth.phase, False
            in_modules = in_modules or bool(birth.module)
            is_outside = not birth.module and birth.phase == ("forward" if in_modules else "backward")
            is_head = bool(birth.module) and birth.phase != "optimizer" and place_of(birth.module).piece == HEAD
            found[birth.id] = "loss" if is_outside or is_head else birth.phase  # type: ignore[assignment]  # the recorder knows these three
        return found

    def phase_of(self, birth: BirthRow) -> Phase:
        """The phase in which a storage is born."""
        return self._phases[birth.id]

    def category_of(self, birth: BirthRow) -> Category:
        """What a storage is: what the program said of it, else what its life says, as torch's profiler names it."""
        if birth.category == BUFFER:
            return "parameter"
        if birth.category:
            return birth.category  # type: ignore[return-value]  # the watch uses the ledger's words
        if birth.again:
            return "activation"
        if birth.phase == "forward":
            return "activation" if self._reaches_backward(birth) else "temporary"
        return "autograd_detail" if birth.phase == "backward" else "temporary"

    def _reaches_backward(self, birth: BirthRow) -> bool:
        """Whether what forward made is still there when backward begins."""
        at = bisect_right(self._backwards, birth.born)
        began = self._backwards[at] if at < len(self._backwards) else len(self.traced.events)
        return birth.died is None or birth.died > began

    def place(self, birth: BirthRow) -> Place:
        """Where a storage belongs."""
        if birth.phase == "optimizer" and not birth.category:
            return Place("", None, STEP)
        if birth.given:
            return place_of(birth.given).within(INPUT)
        found = place_of(birth.module)
        return found.whole if birth.category in PARAMETERS and is_adapter(birth.module) else found
