"""The answer to one job (contract, section 3)."""

from __future__ import annotations

from typing import Any

import msgspec

from everybyte.basics.origin import Setting
from everybyte.basics.units import show_bytes
from everybyte.ledger.display import Displayed
from everybyte.ledger.entry import Entry, Phase
from everybyte.ledger.ledger import Ledger, PhaseTotal
from everybyte.ledger.time import Term
from everybyte.ledger.verdict import Verdict, share_that_fits, verdict_of

SCHEMA = 1


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The model of the answer. Parameters count tied weights once and no buffers."""

    name: str
    params: int
    """All parameters of the model; those of a mixture with all experts."""
    active_params: int
    """Those that a token passes."""
    trainable_params: int
    """Those that the job trains, an adapter's among them."""
    layers: int
    """Blocks of the network."""


class HardwareFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The device of the answer; `capacity` is what torch sees, in bytes."""

    gpu: str
    capacity: int


class RankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of rank: how many GPUs are of it, its figures and its ledger."""

    label: str
    """Its name: `gpu 0`, `every rank`, `pp0 (embedding)`."""
    gpus: int
    """How many GPUs are of this kind."""
    stage: int
    """The pipeline stage, from 0 on."""
    figures: dict[str, int]
    """Its figures by name."""
    peak_phase: Phase
    """The phase in which most is allocated."""
    phases: tuple[PhaseTotal, ...]
    """What the allocator holds at the highest instant of each phase."""
    ledger: tuple[Entry, ...]
    """All rows."""

    def book(self) -> Ledger:
        """The entries as a Ledger."""
        return Ledger(self.ledger)

    def __repr__(self) -> str:
        """One line, without the rows."""
        peak = show_bytes(self.figures["peak.allocated"]) if "peak.allocated" in self.figures else "?"
        return f"<RankAnswer {self.label!r}: {self.gpus} GPU{'s' if self.gpus != 1 else ''}, {peak} allocated in {self.peak_phase}, {len(self.ledger)} rows>"


class Answer(Displayed, msgspec.Struct, frozen=True, kw_only=True):
    """Figures, ranges, ledgers and the settings they rest on. `fits` and `headroom` are None when no hardware is named."""

    name: str
    job: dict[str, Any]
    """The job as it was given, in the contract's form."""
    settings: tuple[Setting[Any], ...]
    """Every setting that counts, with its origin."""
    model: ModelFacts
    hardware: HardwareFacts | None
    fits: bool | None
    """Whether `peak.device` stays below the capacity on every rank."""
    headroom: int | None
    """Bytes that are left of the capacity; negative if they are missing."""
    figures: dict[str, float]
    """The figures of the rank that needs most, by name: whole bytes and counts, and of speed what has a fraction."""
    range: dict[str, tuple[float, float]]
    """Figure -> the interval in which nine of ten measured values lie."""
    ranks: tuple[RankAnswer, ...]
    """One for each kind of rank."""
    host: dict[str, int]
    """What lies in host memory, in bytes a node."""
    assumptions: tuple[str, ...]
    """What the answer takes for granted because the job does not say."""
    warnings: tuple[str, ...]
    """What is doubtful about the job."""
    advice: tuple[dict[str, Any], ...] = ()
    """What would make it fit."""
    refusals: tuple[str, ...] = ()
    """Why a serving engine does not start or serve this; they stand first among the warnings too."""
    time: tuple[Term, ...] = ()
    """The terms of a training step, or of a decode step; they add up to its length. Empty where the speed is not known."""
    caveats: tuple[str, ...] = ()
    """What a reader must know beside the verdict: parts that are not counted, layers that run on the CPU."""

    def __repr__(self) -> str:
        """One line: what is needed, of what, and the verdict."""
        needed = next((show_bytes(int(self.figures[name])) for name in ("peak.device", "peak.reserved", "peak.allocated") if name in self.figures), "?")
        of = f" of {show_bytes(self.hardware.capacity)}: {self.verdict}" if self.hardware else ""
        return f"<Answer {self.name or self.model.name!r}: {needed}{of}>"

    @property
    def worst(self) -> RankAnswer:
        """The rank kind that needs most; the top-level figures are its."""
        key = next((k for k in ("peak.device", "peak.reserved", "peak.allocated") if k in self.figures), None)
        return max(self.ranks, key=lambda r: r.figures.get(key, 0)) if key else self.ranks[0]

    def size(self, name: str) -> int | None:
        """A figure that counts bytes or tokens, or None where the answer has none of this name."""
        return int(self.figures[name]) if name in self.figures else None

    @property
    def verdict(self) -> Verdict | None:
        """`fits`, `close` where the 90 % interval of what is needed crosses the capacity, or `does not fit`; None without hardware."""
        return None if self.fits is None or self.hardware is None else verdict_of(fits=self.fits, ends=self.needed_range, capacity=self.hardware.capacity)

    @property
    def chance(self) -> float | None:
        """Share of runs of this kind that would fit, from 0 to 1, by the range; None without hardware."""
        if self.fits is None or self.hardware is None or self.headroom is None:
            return None
        if self.is_refused:
            return 0.0
        return share_that_fits(self.hardware.capacity - self.headroom, self.needed_range, self.hardware.capacity)

    @property
    def is_refused(self) -> bool:
        """Whether it does not run although the device has room: an engine refuses to start, or host memory is short."""
        return self.fits is False and (bool(self.refusals) or (self.headroom or 0) >= 0)

    @property
    def needed_range(self) -> tuple[float, float] | None:
        """The interval of what the verdict rests on, the point figure inside it; None where the verdict is certain, or where no measured run tells."""
        ends = self.range.get("peak.device")
        if ends is None or self.is_refused or self.hardware is None or self.headroom is None:
            return None
        needed = self.hardware.capacity - self.headroom
        return min(ends[0], needed), max(ends[1], needed)
