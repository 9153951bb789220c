"""What an engine gives back for a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import msgspec

from everybyte.basics.record import Record
from everybyte.ledger.build import Line
from everybyte.ledger.entry import Phase
from everybyte.ledger.ledger import Ledger
from everybyte.rules.accounting.resolved_settings import ResolvedSettings


class Device(NamedTuple):
    """The GPU of a job as far as an engine needs it."""

    name: str
    capacity: int
    compute_capability: str


class Bill(Protocol):
    """The step of one kind of rank: totals at once, rows when asked for, and the allocations in program order."""

    def __hash__(self) -> int:
        """Equal steps have equal bills: the longest part of an answer, the replay, is done once for each."""
        ...

    def totals(self) -> dict[Phase, int]:
        """Allocated bytes at the highest instant of each phase."""
        ...

    def ledger(self) -> Ledger:
        """All rows."""
        ...

    def script(self) -> Iterable[tuple[int, int]]:
        """(key, bytes) allocations and (key, 0) frees."""
        ...


class Rank(Record, frozen=True):
    """One kind of rank."""

    bill: Bill
    label: str = "gpu 0"
    gpus: int = 1
    stage: int = 0
    outside: tuple[Line, ...] = ()
    """What the process has beside torch's allocator and the CUDA context, all the time (rules.communication.nccl): of category `context`."""
    host: tuple[Line, ...] = ()
    """What it keeps in host memory (rules.sharding.offload)."""
    uneven: Bill | None = None
    """The same where all tokens choose experts of this rank; None where that changes nothing or cannot be."""
    on_host: bool = False
    """The process uses no GPU: it has no context on one."""
    is_covered: bool = False
    """Another rank holds the same and has at least as much in flight: this one cannot be the worst (rules.parallel.pipeline)."""


class Account(Record, frozen=True):
    """The ranks of a job, what is trained, figures that only the engine knows, and the settings behind them."""

    ranks: tuple[Rank, ...]
    choices: ResolvedSettings
    trainable_params: int = 0
    figures: dict[str, int] = msgspec.field(default_factory=dict)
    peak_figure: str = "peak.allocated"
    expandable: bool = False
    """The framework's own launcher sets expandable_segments:True where the job does not say."""
    capacity: int = 0
    """Bytes of the device that the engine may use, where it says so itself; 0: all of them."""
    refusals: tuple[str, ...] = ()
    """Why a serving engine refuses to start, or cannot serve what is asked, though the device has room: one sentence each."""
