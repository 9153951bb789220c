"""What the moves of advice ask about a job."""

from __future__ import annotations

from typing import Any

from everybyte.basics.record import Record
from everybyte.ledger.answer import Answer
from everybyte.plan.start.taken import Taken, get


class Facts(Record, frozen=True, eq=False):
    """A job that was answered, with its defaults filled in."""

    answer: Answer
    taken: Taken

    def get(self, path: str, default: Any = None) -> Any:
        """The value of a setting, also one that a framework chose."""
        found = get(self.answer.job, path)
        return default if found is None else found

    def word(self, path: str) -> str:
        """A setting that is a word; empty where there is none. A part that one word stands for is that word."""
        found = self.get(path)
        return found if isinstance(found, str) else ""

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return int(self.get("hardware.gpus", 1) or 1)

    @property
    def needs(self) -> int:
        """`peak.device` of the worst rank."""
        return int(self.answer.figures["peak.device"])

    @property
    def capacity(self) -> int:
        """Bytes of the device."""
        return self.answer.hardware.capacity if self.answer.hardware else 0
