"""What a pipeline holds on the device: prompts are encoded, latents denoised step by step, and decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from everybyte.basics.record import Record
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Batch
from everybyte.ledger.build import Line, build
from everybyte.ledger.entry import Phase
from everybyte.ledger.ledger import Ledger
from everybyte.models.count import tensors
from everybyte.rules.accounting.overhead import workspace_line
from everybyte.rules.step.layout import WHOLE
from everybyte.rules.step.persistent_state import tensor_bytes, weight_lines
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.timeline import StepTimeline


class Part(Record, frozen=True):
    """One model of a pipeline."""

    name: str
    phase: Phase
    """When it runs."""
    network: Network
    """What is loaded."""
    runs: Network
    """What of it runs."""
    setup: Setup
    batch: Batch
    more: tuple[Line, ...] = ()
    """Further weights: joined projections."""

    def weights(self) -> list[Line]:
        """Its weights by module."""
        lines = [*weight_lines(self.network, self.setup, WHOLE), *self.more]
        return [line._replace(id=line.id.replace("/", f"/{self.name}/", 1)) for line in lines]

    def largest(self) -> list[Line]:
        """The tensor that is the largest, which sequential offload brings to the device at some time."""
        most = max(tensor_bytes(p, self.setup) for p in tensors(self.network, self.setup))
        return [self.weights()[0]._replace(id=f"weights/{self.name}/one layer", bytes=most)]

    def timeline(self) -> StepTimeline:
        """Its forward pass."""
        return StepTimeline(self.runs, Recipe(self.setup, self.batch, stream=self.setup.weights))

    def working(self) -> tuple[int, list[Line]]:
        """Bytes and rows at the highest instant of its forward pass."""
        timeline = self.timeline()
        peak = timeline.forward(0, len(timeline.row))
        rows = [line._replace(id=line.id.replace("/", f"/{self.name}/", 1)) for line in timeline.lines(peak)]
        return peak.bytes, rows

    def held(self) -> list[int]:
        """Sizes of what lives at that instant."""
        timeline = self.timeline()
        peak = timeline.forward(0, len(timeline.row))
        return [s.size.at(timeline.points[timeline.row[peak.segment].tower]) for s in timeline.instant(peak).held]


PHASES: tuple[Phase, ...] = ("prefill", "forward", "decode")
"""Prompts are encoded, latents denoised, latents decoded."""


class Pipeline(Record, frozen=True):
    """All models of a pipeline; `offload` says which of them are on the device when one runs."""

    parts: tuple[Part, ...]
    beside: tuple[Line, ...]
    """Latents and prompt states."""
    decoded: tuple[Line, ...]
    """Frames that were decoded before the last."""
    offload: str
    compute_capability: str

    def resident(self, part: Part | None) -> list[Line]:
        """Weights on the device while a part runs, or after loading."""
        if self.offload == "none":
            return [line for one in self.parts for line in one.weights()]
        if part is None:
            return []
        return part.weights() if self.offload == "model" else part.largest()

    def phases(self) -> dict[Phase, Iterable[Line]]:
        """The rows of each phase, of the part that needs most in it."""
        found: dict[Phase, Iterable[Line]] = {"load": self.resident(None)}
        for phase in PHASES:
            always = [*self.beside, workspace_line(self.compute_capability, 1), *(self.decoded if phase == "decode" else ())]
            several = [[*self.resident(part), *always, *part.working()[1]] for part in self.parts if part.phase == phase]
            if several:
                found[phase] = max(several, key=lambda rows: sum(line.bytes for line in rows))
        return found

    def ledger(self) -> Ledger:
        """All rows."""
        return build(self.phases())

    def totals(self) -> dict[Phase, int]:
        """Bytes of each phase."""
        return {phase: sum(line.bytes for line in rows) for phase, rows in self.phases().items()}

    def script(self) -> Iterator[tuple[int, int]]:
        """Loading, and each model's forward pass up to its highest instant; with offload its weights come and go around it."""
        key, loaded = 0, []
        for part in self.parts if self.offload == "none" else ():
            for size in (*(tensor_bytes(p, part.setup) for p in tensors(part.network, part.setup)), *(line.bytes for line in part.more)):
                key += 1
                yield key, size
        for line in (*self.beside, workspace_line(self.compute_capability, 1)):
            key += 1
            yield key, line.bytes
        for part in self.parts:
            weights = [line.bytes for line in self.resident(part)] if self.offload != "none" else []
            frames = [line.bytes for line in self.decoded] if part.phase == "decode" else []
            for size in (*weights, *frames, *part.held()):
                if size:
                    key += 1
                    loaded.append(key)
                    yield key, size
            yield from ((one, 0) for one in loaded)
            loaded = []
