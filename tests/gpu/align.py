"""Lays two courses of memory side by side, event by event, and says where they differ."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher

from course import StepTimeline


@dataclass(frozen=True)
class Difference:
    """A stretch of events that only one course has, or that each has differently: positions in the courses' events."""

    ours: range
    theirs: range


@dataclass(frozen=True)
class Alignment:
    """A part of two courses. `agreed` events are in both, in the same order and with the same bytes."""

    part: str
    events: tuple[int, int]
    agreed: int
    differences: list[Difference]

    @property
    def share(self) -> float:
        """The share of all events that agree."""
        return 2 * self.agreed / sum(self.events) if sum(self.events) else 1.0


def align(ours: StepTimeline, theirs: StepTimeline, part: str) -> Alignment:
    """The longest stretches of a part that are alike, then the longest between those, and so on."""
    a, b = ours.sizes(part), theirs.sizes(part)
    first_a, first_b = ours.parts[part][0], theirs.parts[part][0]
    steps = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return Alignment(
        part,
        (len(a), len(b)),
        sum(a1 - a0 for tag, a0, a1, _, _ in steps if tag == "equal"),
        [Difference(range(first_a + a0, first_a + a1), range(first_b + b0, first_b + b1)) for tag, a0, a1, b0, b1 in steps if tag != "equal"],
    )


def only_one(ours: StepTimeline, theirs: StepTimeline, part: str) -> list[tuple[int, int, str]]:
    """What lives at the peak of a part on one side alone, largest first: (bytes, +1 ours or -1 theirs, what made it)."""
    sides = [course.living(course.peak(part)[1]) for course in (ours, theirs)]
    left = Counter(sides[0].values())
    left.subtract(Counter(sides[1].values()))
    found: list[tuple[int, int, str]] = []
    for course, alive, sign in ((ours, sides[0], 1), (theirs, sides[1], -1)):
        # storages of one size are alike: those that were made last stand for the ones too many
        for number, size in reversed(alive.items()):
            if left[size] * sign > 0:
                left[size] -= sign
                found.append((size, sign, course.made[number]))
    return sorted(found, key=lambda one: -one[0])
