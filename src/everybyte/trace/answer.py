"""The answer of a trace: the figures and the ledger of one kind of rank, in the same form as an estimate."""

from __future__ import annotations

from math import prod
from typing import Any

from everybyte.allocator.caching import DEFAULT, STREAM_BITS
from everybyte.allocator.replay import Event
from everybyte.allocator.reserved import peak_reserved
from everybyte.allocator.settings import AllocatorSettings
from everybyte.basics.errors import BadInput
from everybyte.catalog.gpus import Gpu, find_gpu
from everybyte.ledger.answer import Answer, HardwareFacts, ModelFacts, RankAnswer
from everybyte.ledger.build import Line, build
from everybyte.rules.overhead import context_line, workspace_line
from everybyte.trace.asked import Asked, Traced
from everybyte.trace.ledger import ledger_of
from everybyte.trace.timeline import Timeline

TRAINING_HANDLES = 2
"""cuBLAS handles of a step: one in the program's thread, one in autograd's."""
MULTIPLIES = ("aten.mm.", "aten.addmm.", "aten.bmm.", "aten.baddbmm.", "aten._scaled_mm.", "aten._grouped_mm.")


def answer_of(traced: Traced, asked: Asked, settings: AllocatorSettings = DEFAULT) -> Answer:
    """Figures and rows of the last step of a trace. Raises BadInput where nothing was on the GPU."""
    gpu = find_gpu(asked.gpu, "--gpu")
    timeline = Timeline(traced)
    if not traced.births:
        raise BadInput("target", f"{asked.target} puts nothing on the GPU: build the model on device 'cuda', or move it there")
    workspace = _workspace(traced, gpu)
    outside = context_line(gpu.compute_capability)
    ledger = ledger_of(timeline, workspace)
    phases = ledger.phases()
    peak = max(phases, key=lambda phase: phase.allocated)
    room = max(gpu.capacity - outside.bytes, 0)
    reserved = max(peak_reserved(script(traced, workspace), settings, room, total=gpu.capacity).peak, peak.allocated)
    figures = {
        "peak.allocated": peak.allocated,
        "peak.reserved": reserved,
        "peak.device": reserved + outside.bytes,
        "static.allocated": next(phase.allocated for phase in phases if phase.name == "between_steps"),
    }
    rank = RankAnswer(
        label=f"rank {asked.rank}", gpus=asked.world, stage=0, figures=figures, peak_phase=peak.name, phases=phases,
        ledger=(*ledger.entries, *build({phase.name: (outside,) for phase in phases}).entries),
    )  # fmt: skip
    headroom = gpu.capacity - figures["peak.device"]
    return Answer(
        name=asked.target, job=_job(asked), settings=(), model=_model(traced, asked), hardware=HardwareFacts(gpu=gpu.name, capacity=gpu.capacity),
        fits=headroom >= 0, headroom=headroom, figures=figures, range={}, ranks=(rank,), host={}, assumptions=traced.notes, warnings=(),
    )  # fmt: skip


def script(traced: Traced, workspace: tuple[Line, ...] = ()) -> list[Event]:
    """The events as the allocator's replay takes them; workspaces are taken first and never given back."""
    streams = {birth.id: birth.stream for birth in traced.births}
    first = len(traced.births) + 1
    taken = [(first + index, line.bytes) for index, line in enumerate(workspace)]
    return taken + [(number | streams[number] << STREAM_BITS, max(nbytes, 0)) for number, nbytes in traced.events]


def _workspace(traced: Traced, gpu: Gpu) -> tuple[Line, ...]:
    """cuBLAS' workspaces, if the program multiplies matrices: they are taken at the first product and stay."""
    if not any(birth.operation.startswith(MULTIPLIES) for birth in traced.births):
        return ()
    trains = any(birth.phase == "backward" for birth in traced.births)
    return (workspace_line(gpu.compute_capability, TRAINING_HANDLES if trains else 1),)


def _job(asked: Asked) -> dict[str, Any]:
    return {"trace": asked.target, "hardware": {"gpu": asked.gpu, "gpus": asked.world}, "steps": asked.steps}


def _model(traced: Traced, asked: Asked) -> ModelFacts:
    parameters = [birth for birth in traced.births if birth.category == "parameter"]
    trained = {birth.module for birth in traced.births if birth.category == "gradient"}
    total = sum(prod(birth.shape) for birth in parameters)
    return ModelFacts(
        name=asked.target, params=total, active_params=total,
        trainable_params=sum(prod(birth.shape) for birth in parameters if birth.module in trained), layers=0,
    )  # fmt: skip
