"""What a serving process holds, phase by phase, as rows that are known at once: engines take their memory in a few large pieces."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.basics.record import Record
from everybyte.ledger.build import Line, build
from everybyte.ledger.entry import Phase
from everybyte.ledger.ledger import Ledger

Phases = tuple[tuple[Phase, tuple[Line, ...]], ...]
"""Rows of each phase, in the order of the phases."""


class ServerPhases(Record, frozen=True):
    """A Bill of rows by phase. A row with the same id and size lives on from phase to phase."""

    phases: Phases

    def totals(self) -> dict[Phase, int]:
        """Bytes of each phase."""
        return {phase: sum(line.bytes for line in lines) for phase, lines in self.phases}

    def ledger(self) -> Ledger:
        """All rows."""
        return build(dict(self.phases))

    def script(self) -> Iterator[tuple[int, int]]:
        """Each row as one block, from the first phase that has it until the first that has not."""
        living: dict[tuple[str, int], int] = {}
        key = 0
        for _, lines in self.phases:
            wanted = {(line.id, line.bytes) for line in lines if line.bytes}
            for name in [name for name in living if name not in wanted]:
                yield living.pop(name), 0
            for line in lines:
                if line.bytes and (line.id, line.bytes) not in living:
                    key += 1
                    living[line.id, line.bytes] = key
                    yield key, line.bytes
