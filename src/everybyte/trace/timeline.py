"""A trace as a course of time: what lives at each position, in which phase the program is, and where the highest instants are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from everybyte.basics.units import round_up
from everybyte.ledger.entry import Category, Phase
from everybyte.trace.asked import BirthRow, Traced
from everybyte.trace.places import LOSS, Place, place_of

BLOCK = 512
"""The caching allocator counts in blocks of so many bytes."""
HEAD = LOSS.partition("/")[0]
STEP = "optimizer"
"""The place of what the optimizer makes and frees in its step."""


class Instant(NamedTuple):
    """What lives after so many events, by category, in rounded bytes."""

    position: int
    living: dict[Category, int]


class Timeline:
    """Reads a trace. Positions count events; sizes are rounded as the allocator rounds them."""

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.births = {birth.id: birth for birth in traced.births}

    @cached_property
    def last_step(self) -> tuple[int, int]:
        """First and last position of the last step: states of the optimizer exist from its first event on."""
        *_, start, end = (mark.position for mark in self.traced.marks)
        return start, end

    def sizes(self) -> Iterator[tuple[int, BirthRow, int]]:
        """(position, birth, change of bytes) of each event."""
        for position, (number, nbytes) in enumerate(self.traced.events):
            size = round_up(abs(nbytes), BLOCK)
            yield position, self.births[number], size if nbytes > 0 else -size

    @cached_property
    def peaks(self) -> dict[Phase, tuple[int, int]]:
        """Of each phase of the last step its highest instant: (bytes, position after the event). `between_steps` is the end."""
        start, end = self.last_step
        found: dict[Phase, tuple[int, int]] = {}
        now = 0
        for position, birth, change in self.sizes():
            if position >= end:
                break  # the program is over and gives everything back
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
        """Rounded bytes of each birth that lives after so many events."""
        alive: dict[int, int] = {}
        for number, nbytes in self.traced.events[:position]:
            if nbytes > 0:
                alive[number] = round_up(nbytes, BLOCK)
            else:
                alive.pop(number, None)
        return alive

    def phase_of(self, birth: BirthRow) -> Phase:
        """The phase in which a storage is born; what the head makes in the forward pass belongs to the loss."""
        if birth.phase == "forward" and place_of(birth.module).name.startswith(f"{HEAD}/") and birth.module:
            return "loss"
        return birth.phase  # type: ignore[return-value]  # the recorder knows these three

    def category_of(self, birth: BirthRow) -> Category:
        """What a storage is: what the program said of it, else what its life says, as torch's profiler names it."""
        if birth.category:
            return birth.category  # type: ignore[return-value]  # the watch uses the ledger's words
        if birth.phase == "forward":
            return "temporary" if birth.died_in == "forward" else "activation"
        return "autograd_detail" if birth.phase == "backward" else "temporary"

    def place(self, birth: BirthRow) -> Place:
        """Where a storage belongs."""
        return Place("", None, STEP) if birth.phase == "optimizer" and not birth.category else place_of(birth.module)
