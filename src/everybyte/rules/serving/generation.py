"""Inference of one model on one GPU: loading, the prompt's forward pass, and decoding token by token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from everybyte.basics.record import Record
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Batch
from everybyte.ledger.build import Line, build, plain
from everybyte.ledger.entry import Phase
from everybyte.ledger.ledger import Ledger
from everybyte.models.count import tensors
from everybyte.rules.accounting.overhead import workspace_line
from everybyte.rules.step.cache import Format, cache_lines
from everybyte.rules.step.layout import WHOLE
from everybyte.rules.step.persistent_state import tensor_bytes, weight_lines
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.timeline import Peak, StepTimeline


class Generation(Record, frozen=True):
    """A prompt of `prompt` and decoding up to `last`, with a cache of `kind`; `decodes` False: one forward pass alone."""

    network: Network
    setup: Setup
    prompt: Batch
    last: Batch
    kind: Format
    compute_capability: str
    caches: bool = True
    decodes: bool = True
    beside: tuple[Line, ...] = ()
    """What the model keeps beside its weights from loading on."""

    def static(self) -> list[Line]:
        """Rows that live all the time."""
        batch = self.prompt
        size = 8 * batch.b * batch.s
        ids = Line("input/ids", "input", size, plain("8·b·s", b=batch.b, s=batch.s), "token ids, int64")
        return [*weight_lines(self.network, self.setup, WHOLE), *self.beside, workspace_line(self.compute_capability, 1), ids]

    def timeline(self, phase: str) -> StepTimeline:
        """The forward pass of a phase."""
        batch = self.prompt if phase == "prefill" else self.last
        mode = "none" if not self.caches else phase
        setup = replace(self.setup, cache=mode)
        return StepTimeline(self.network, Recipe(setup, batch, stream=setup.weights))

    def peak(self, phase: str) -> tuple[StepTimeline, Peak]:
        """The highest instant of a phase."""
        timeline = self.timeline(phase)
        return timeline, timeline.forward(0, len(timeline.row))

    def remembered(self, phase: str) -> list[Line]:
        """The cache at the end of a phase. In prefill a window's cache is a view of the whole prompt's keys, which keeps them all."""
        if not self.caches:
            return []
        batch = self.prompt if phase == "prefill" else self.last
        return list(cache_lines(self.network, batch, self.kind, windows=phase == "decode"))

    def steps(self) -> tuple[Phase, ...]:
        """The phases after loading."""
        return ("prefill", "decode") if self.decodes else ("prefill",)

    def phases(self) -> dict[Phase, Iterable[Line]]:
        """The rows of each phase."""
        static = self.static()
        found: dict[Phase, Iterable[Line]] = {"load": [line for line in static if line.category == "parameter"]}
        for phase in self.steps():
            timeline, peak = self.peak(phase)
            found[phase] = [*static, *self.remembered(phase), *timeline.lines(peak)]
        return found

    def ledger(self) -> Ledger:
        """All rows."""
        return build(self.phases())

    def totals(self) -> dict[Phase, int]:
        """Bytes of each phase without writing rows."""
        static = self.static()
        weights = sum(line.bytes for line in static if line.category == "parameter")
        always = sum(line.bytes for line in static)
        found: dict[Phase, int] = {"load": weights}
        for phase in self.steps():
            found[phase] = always + sum(line.bytes for line in self.remembered(phase)) + self.peak(phase)[1].bytes
        return found

    def script(self) -> Iterator[tuple[int, int]]:
        """Loading, the prompt, and one step of decoding in which the cache is made anew, layer by layer."""
        key = 0
        for parameter in tensors(self.network, self.setup):
            key += 1
            yield key, tensor_bytes(parameter, self.setup)
        for line in self.static():
            if line.category != "parameter" or line in self.beside:
                key += 1
                yield key, line.bytes
        for phase in self.steps():
            timeline, peak = self.peak(phase)
            held = [line.bytes for line in self.remembered(phase)] if phase == "prefill" else []
            for size in [*held, *(s.size.at(timeline.points[timeline.row[peak.segment].tower]) for s in timeline.instant(peak).held)]:
                if size:  # nothing, where an axis of this batch is 0: zero bytes would mean a free
                    key += 1
                    yield key, size
