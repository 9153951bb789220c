"""The answer to one job (contract, section 3)."""

from __future__ import annotations

from typing import Any

import msgspec

from everybyte.basics.origin import Setting
from everybyte.ledger.entry import Entry, Phase
from everybyte.ledger.ledger import Ledger, PhaseTotal

SCHEMA = 1


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The model of the answer. Parameters count tied weights once and no buffers."""

    name: str
    params: int
    active_params: int
    trainable_params: int
    layers: int


class HardwareFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The device of the answer; `capacity` is what torch sees, in bytes."""

    gpu: str
    capacity: int


class RankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of rank: how many GPUs are of it, its figures and its ledger."""

    label: str
    gpus: int
    stage: int
    figures: dict[str, int]
    peak_phase: Phase
    phases: tuple[PhaseTotal, ...]
    ledger: tuple[Entry, ...]

    def book(self) -> Ledger:
        """The entries as a Ledger."""
        return Ledger(self.ledger)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Figures, ranges, ledgers and the settings they rest on. `fits` and `headroom` are None when no hardware is named."""

    name: str
    job: dict[str, Any]
    settings: tuple[Setting[Any], ...]
    model: ModelFacts
    hardware: HardwareFacts | None
    fits: bool | None
    headroom: int | None
    figures: dict[str, int]
    range: dict[str, tuple[float, float]]
    ranks: tuple[RankAnswer, ...]
    host: dict[str, int]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    advice: tuple[dict[str, Any], ...] = ()
    refusals: tuple[str, ...] = ()
    """Why a serving engine does not start or serve this; they stand first among the warnings too."""

    @property
    def worst(self) -> RankAnswer:
        """The rank kind that needs most; the top-level figures are its."""
        key = next((k for k in ("peak.device", "peak.reserved", "peak.allocated") if k in self.figures), None)
        return max(self.ranks, key=lambda r: r.figures.get(key, 0)) if key else self.ranks[0]
