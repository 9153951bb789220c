"""What took and gave memory in the course of a job: as a memory snapshot of the GPU tells it, as a trace does, as torch's profiler does on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from jobs import MARK_BYTES

from everybyte.allocator.caching import MIN_BLOCK
from everybyte.basics.units import round_up
from everybyte.catalog.gpus import find_gpu
from everybyte.measure.snapshots.read import Entry
from everybyte.rules.accounting.overhead import cublas_workspace
from everybyte.trace.recording.timeline import Timeline
from everybyte.trace.request import BirthRow, Traced
from everybyte.trace.results.answer import MULTIPLIES

BUILDING = "building"
MORE_THAN_A_NUMBER = 9
"""Bytes. Single numbers, such as the steps of optimizers, lie on the CPU: where the program itself runs there, they are left out."""
FRAMES = 3
"""Frames of a stack that are shown."""


class Request(NamedTuple):
    """Memory that is taken under a key, or, with 0 bytes, given back."""

    key: Any
    nbytes: int
    by: str = ""


@dataclass(frozen=True)
class StepTimeline:
    """`events` are (number of a storage, bytes), negative where it is freed, in blocks of 512 bytes, without the marks. `made` says by what each was made.
    `parts` are the building and the runs, each with its first position and the one behind its last."""

    events: list[tuple[int, int]]
    made: dict[int, str]
    parts: dict[str, tuple[int, int]]

    def sizes(self, part: str) -> list[int]:
        """The bytes of the events of a part."""
        start, end = self.parts[part]
        return [nbytes for _, nbytes in self.events[start:end]]

    def peak(self, part: str) -> tuple[int, int]:
        """(bytes, number of events behind which so much lives) at the highest instant of a part."""
        start, end = self.parts[part]
        now = sum(nbytes for _, nbytes in self.events[:start])
        highest = now, start
        for position, (_, nbytes) in enumerate(self.events[start:end], start + 1):
            now += nbytes
            highest = max(highest, (now, position), key=lambda found: found[0])
        return highest

    def living(self, position: int) -> dict[int, int]:
        """Bytes of each storage that lives after so many events."""
        alive: dict[int, int] = {}
        for number, nbytes in self.events[:position]:
            if nbytes > 0:
                alive[number] = nbytes
            else:
                del alive[number]
        return alive


def course_of(requests: Iterable[Request], least_bytes: int = 1) -> StepTimeline:
    """The course that requests make, without those of fewer bytes. What is given back and was not taken in it is left out."""
    events: list[tuple[int, int]] = []
    made: dict[int, str] = {}
    marks: list[int] = []
    living: dict[Any, tuple[int, int]] = {}
    for key, nbytes, by in requests:
        if nbytes == MARK_BYTES:
            marks.append(len(events))
        elif nbytes >= least_bytes:
            living[key] = len(made), round_up(nbytes, MIN_BLOCK)
            made[len(made)] = by
            events.append(living[key])
        elif not nbytes and key in living:
            number, size = living.pop(key)
            events.append((number, -size))
    return StepTimeline(list(_in_order(events, marks)), made, dict(_parts(marks, len(events))))


def _in_order(events: list[tuple[int, int]], marks: list[int]) -> Iterator[tuple[int, int]]:
    """What is freed in a row is put in order of its size: which goes first changes nothing, and hangs on addresses (autocast's cache of casts)."""
    for begin, end in itertools.pairwise([0, *marks, len(events)]):
        for _, row in itertools.groupby(events[begin:end], lambda event: event[1] < 0):
            found = list(row)
            yield from sorted(found, key=lambda event: event[1]) if found[0][1] < 0 else found


def _parts(marks: list[int], end: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """The building, then the runs from the mark at their begin to that of the next: between two runs nothing of a job happens. What is behind the mark
    at the last one's end is the program's own end."""
    if len(marks) % 2 == 0 and marks:
        end = marks.pop()
    begins = marks[::2]
    yield BUILDING, (0, begins[0] if begins else end)
    for number, run in enumerate(itertools.pairwise([*begins, end]), 1):
        yield f"run {number}", run


# -- a snapshot -------------------------------------------------------------------------------------------------------------------
def of_history(history: Iterable[Entry]) -> StepTimeline:
    """The course in a memory snapshot: a storage is freed when the program gives it back, even where a stream still works on it."""
    return course_of(_told(history))


def _told(history: Iterable[Entry]) -> Iterator[Request]:
    for entry in history:
        if entry.action == "alloc":
            yield Request(entry.addr, entry.size, _stack(entry.frames))
        elif entry.action == "free_requested":
            yield Request(entry.addr, 0)


def _stack(frames: list[dict[str, Any]]) -> str:
    """The innermost frame, and the innermost ones outside torch; autograd's own thread has none."""
    outside = [frame for frame in frames[1:] if "/torch/" not in frame["filename"]]
    shown = [*frames[:1], *outside][:FRAMES]
    return " < ".join(f"{frame['name']} ({tail(frame['filename'])}:{frame['line']})" for frame in shown) or "no Python frame"


def tail(path: str) -> str:
    """The last two parts of a path."""
    return "/".join(path.split("/")[-2:])


# -- a trace ----------------------------------------------------------------------------------------------------------------------
def of_trace(traced: Traced, gpu: str | None) -> StepTimeline:
    """The course of a trace; on a GPU with cuBLAS' workspaces, which forward and backward take at their first product, each in its thread."""
    workspace = cublas_workspace(find_gpu(gpu, "gpu").compute_capability) if gpu else 0
    return course_of(_seen(traced, workspace), 1 if gpu else MORE_THAN_A_NUMBER)


def _seen(traced: Traced, workspace: int) -> Iterator[Request]:
    timeline = Timeline(traced)
    without = {"forward", "backward"} if workspace else set()
    for number, nbytes in traced.events:
        birth = timeline.births[number]
        yield Request(number, max(nbytes, 0), _birth(birth, timeline) if nbytes > 0 else "")
        if nbytes > 0 and birth.phase in without and birth.operation.startswith(MULTIPLIES):
            without.remove(birth.phase)
            yield Request(birth.phase, workspace, f"cuBLAS' workspace of {birth.phase}")


def _birth(birth: BirthRow, timeline: Timeline) -> str:
    return (
        f"{birth.operation} in {birth.module or 'no module'} ({birth.phase}, {timeline.category_of(birth)}) at {tail(birth.line) or 'no line of the program'}"
    )
