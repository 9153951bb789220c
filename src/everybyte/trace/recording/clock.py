"""Counts the steps of a traced program and tells how far it is, by the layers that are done."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from everybyte.basics.errors import EverybyteError
from everybyte.trace.request import Mark, Progress

if TYPE_CHECKING:
    from everybyte.trace.recording.layers import Layers
    from everybyte.trace.recording.record import Recorder

PAUSE_S = 0.1
"""Between two words on progress."""
MOST_BIRTHS = 5_000_000
"""A step of the largest models makes some 100,000 tensors."""


class EnoughSteps(BaseException):
    """A script has run as many steps as were asked for. No program catches it by accident."""


class EndlessProgram(EverybyteError):
    """The program makes tensors without end."""


class Clock:
    """Marks the steps in the events of a recorder; its words on progress go to `ear`, if there is one."""

    def __init__(self, recorder: Recorder, steps: int, layers: Layers, ear: BinaryIO | None = None) -> None:
        self.recorder, self.steps, self.layers, self._ear, self._told = recorder, steps, layers, ear, 0.0
        self.marks: list[Mark] = []
        self._end: int | None = None
        self._stepped_at: int | None = None
        recorder.watchers.append(self._born)

    @property
    def step(self) -> int:
        """The step that runs; 0 before the first."""
        return len(self.marks)

    def begin(self) -> None:
        """A step begins."""
        self.marks.append(Mark(f"step {self.step + 1}", len(self.recorder.events)))

    def stepped(self) -> None:
        """The optimizer of a script has stepped. What it frees then, such as gradients, still belongs to the step; the next one begins with what it makes."""
        self._stepped_at = len(self.recorder.events)

    def finish(self) -> None:
        """The steps are over, and what the program holds between them still lives."""
        self._end = len(self.recorder.events)

    def over(self) -> None:
        """The program is over before it has run all steps: what it had begun after its last one is no step."""
        if self._end is None:
            begun = self.marks.pop().position if self._stepped_at is None and self.step > 1 else None
            self._end = next((at for at in (self._stepped_at, begun) if at is not None), len(self.recorder.events))

    def _next(self, position: int) -> None:
        """A script begins its next step there. Raises EnoughSteps after the last."""
        self._stepped_at = None
        if self.step >= self.steps:
            self._end = position
            raise EnoughSteps
        self.marks.append(Mark(f"step {self.step + 1}", position))

    def all_marks(self) -> tuple[Mark, ...]:
        """All marks, with that of the end."""
        return (*self.marks, Mark("end", len(self.recorder.events) if self._end is None else self._end))

    def _born(self, recorder: Recorder) -> None:
        if self._stepped_at is not None:
            self._next(len(recorder.events) - 1)
        births = len(recorder.births)
        if births > MOST_BIRTHS:
            raise EndlessProgram(f"the program has made {births:,} tensors and is still in step {self.step} of {self.steps}; trace a shorter step")
        now = time.monotonic()
        if self._ear is None or now - self._told < PAUSE_S:
            return
        self._told = now
        birth = recorder.births[-1]
        done = self.layers.done(birth.module, birth.phase)
        words = Progress(step=self.step, steps=self.steps, phase=birth.phase, done=done, layers=len(self.layers))
        with contextlib.suppress(BrokenPipeError):
            self._ear.write(msgspec.json.encode(words) + b"\n")


def run_steps(step: Callable[[], Any], clock: Clock) -> None:
    """Runs a step as often as the clock wants."""
    for _ in range(clock.steps):
        clock.begin()
        step()
    clock.finish()
