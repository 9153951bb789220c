"""The answer to one job (contract, section 3)."""

from __future__ import annotations

from typing import Any

import msgspec

from everybyte.basics.origin import Setting
from everybyte.ledger.display import Displayed
from everybyte.ledger.entry import Entry, Phase
from everybyte.ledger.ledger import Ledger, PhaseTotal

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
    figures: dict[str, int]
    """The figures of the rank that needs most, by name."""
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

    @property
    def worst(self) -> RankAnswer:
        """The rank kind that needs most; the top-level figures are its."""
        key = next((k for k in ("peak.device", "peak.reserved", "peak.allocated") if k in self.figures), None)
        return max(self.ranks, key=lambda r: r.figures.get(key, 0)) if key else self.ranks[0]
