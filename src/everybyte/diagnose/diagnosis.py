"""The answer of the doctor."""

from __future__ import annotations

from typing import Any

from everybyte.basics.record import Record
from everybyte.diagnose.suspicion import Suspicion
from everybyte.diagnose.tensor import Tensor
from everybyte.measure.messages.form import Message

SCHEMA = 1


class Cure(Record, frozen=True):
    """A change that helps. Bytes are None where no job was there to estimate."""

    change: dict[str, Any]
    says: str
    price: str
    flags: str = ""
    saves_bytes: int | None = None
    range: tuple[int, int] | None = None
    changes_objective: bool = False
    fits: bool | None = None


class Diagnosis(Record, frozen=True):
    """What asked for how much, in which phase, why it failed, and what helps."""

    recognised: bool
    message: Message | None
    messages: int
    """Messages of lack of memory in the log."""
    phase: str | None
    causes: tuple[Suspicion, ...]
    tensor: Tensor | None = None
    cures: tuple[Cure, ...] = ()
    asked: tuple[str, ...] = ()
    """At most three facts that would decide, each with what it would decide."""
    model: str | None = None
    command: str | None = None

    @property
    def cause(self) -> str:
        """The likeliest cause, a word of the closed list."""
        return self.causes[0].cause

    @property
    def is_memory_fault(self) -> bool:
        """Whether the log shows a lack of memory."""
        return self.cause != "not_memory"
