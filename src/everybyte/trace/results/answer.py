"""The answer of a trace: the figures and the ledger of one kind of rank, in the same form as an estimate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everybyte.allocator.reserved import peak_reserved
from everybyte.allocator.settings import DEFAULT, AllocatorSettings
from everybyte.basics.errors import BadInput
from everybyte.catalog.gpus import Gpu, find_gpu
from everybyte.ledger.answer import Answer, HardwareFacts, ModelFacts, RankAnswer
from everybyte.ledger.build import Line, build
from everybyte.rules.accounting.overhead import context_line, workspace_line
from everybyte.rules.communication.nccl import Wires, nccl_lines
from everybyte.trace.device.stream_lag import delayed
from everybyte.trace.jobs.facts import facts_of
from everybyte.trace.recording.replay_script import script
from everybyte.trace.recording.timeline import Timeline
from everybyte.trace.request import Traced, TraceRequest
from everybyte.trace.results.ledger import ledger_of

TRAINING_HANDLES = 2
"""cuBLAS handles of a step: one in the program's thread, one in autograd's."""
MULTIPLIES = ("aten.mm.", "aten.addmm.", "aten.bmm.", "aten.baddbmm.", "aten._scaled_mm.", "aten._grouped_mm.")


def answer_of(traced: Traced, asked: TraceRequest, settings: AllocatorSettings = DEFAULT) -> Answer:
    """Figures and rows of the last step of a trace. Raises BadInput where nothing was on the GPU."""
    return answer_of_ranks(((asked, traced),), settings)


def answer_of_ranks(runs: Sequence[tuple[TraceRequest, Traced]], settings: AllocatorSettings = DEFAULT) -> Answer:
    """The answer of a program of which one rank was traced or several. The one that needs most decides whether it fits; one alone stands for all.
    Raises BadInput where nothing was on the GPU of a rank."""
    asked, traced = runs[0]
    gpu = find_gpu(asked.gpu, "--gpu")
    stands_for = asked.world if len(runs) == 1 else 1
    ranks = tuple(_rank(seen, one, gpu, settings, stands_for) for one, seen in runs)
    worst = max(ranks, key=lambda rank: rank.figures["peak.device"])
    headroom = gpu.capacity - worst.figures["peak.device"]
    said = facts_of(asked.job) if asked.job is not None else None
    return Answer(
        name=said.name or asked.target if said else asked.target,
        job=said.job if said else _job(asked),
        settings=said.settings if said else (),
        model=(said.model if said else None) or _model(traced, asked),
        hardware=HardwareFacts(gpu=gpu.name, capacity=gpu.capacity),
        fits=headroom >= 0,
        headroom=headroom,
        figures={**worst.figures},
        range={},
        ranks=ranks,
        host={},
        assumptions=(*(said.assumptions if said else ()), *traced.notes, *_alike(runs)),
        warnings=said.warnings if said else (),
    )


def _rank(traced: Traced, asked: TraceRequest, gpu: Gpu, settings: AllocatorSettings, stands_for: int) -> RankAnswer:
    if not traced.births:
        raise BadInput("target", f"{asked.target} puts nothing on the GPU: build the model on device 'cuda', or move it there")
    workspace = _workspace(traced, gpu)
    outside = (context_line(gpu.compute_capability), *nccl_lines(traced.groups, _wires(gpu)))
    beside = sum(line.bytes for line in outside)
    ledger = ledger_of(Timeline(traced, settings), workspace)
    phases = ledger.phases()
    peak = max(phases, key=lambda phase: phase.allocated)
    room = max(gpu.capacity - beside, 0)
    events = delayed(script(traced, [line.bytes for line in workspace]), traced.late, len(workspace))
    reserved = max(peak_reserved(events, settings, room, total=gpu.capacity).peak, peak.allocated)
    figures = {
        "peak.allocated": peak.allocated,
        "peak.reserved": reserved,
        "peak.device": reserved + beside,
        "static.allocated": next(phase.allocated for phase in phases if phase.name == "between_steps"),
    }
    return RankAnswer(
        label=f"rank {asked.rank}",
        gpus=stands_for,
        stage=0,
        figures=figures,
        peak_phase=peak.name,
        phases=phases,
        ledger=(*ledger.entries, *build({phase.name: outside for phase in phases}).entries),
    )


def _alike(runs: Sequence[tuple[TraceRequest, Traced]]) -> tuple[str, ...]:
    """What one rank is taken to stand for."""
    asked, _ = runs[0]
    if asked.world == 1:
        return ()
    others = "the others are not looked at" if len(runs) > 1 else "the others are taken to be alike"
    return (f"of {asked.world} ranks {', '.join(str(one.rank) for one, _ in runs)} ran; {others} (--ranks)",)


def _wires(gpu: Gpu) -> Wires:
    """What NCCL's buffers depend on: the links of the GPU, and the NCCL of the torch that runs."""
    return Wires(int(gpu.compute_capability.partition(".")[0]), (gpu.interconnect_gb_s or 0) > 0)


def _workspace(traced: Traced, gpu: Gpu) -> tuple[Line, ...]:
    """cuBLAS' workspaces, if the program multiplies matrices: they are taken at the first product and stay."""
    if not any(birth.operation.startswith(MULTIPLIES) for birth in traced.births):
        return ()
    trains = any(birth.phase == "backward" for birth in traced.births)
    return (workspace_line(gpu.compute_capability, TRAINING_HANDLES if trains else 1),)


def _job(asked: TraceRequest) -> dict[str, Any]:
    return {"trace": asked.target, "hardware": {"gpu": asked.gpu, "gpus": asked.world}, "steps": asked.steps}


def _model(traced: Traced, asked: TraceRequest) -> ModelFacts:
    return ModelFacts(name=asked.target, params=traced.parameters, active_params=traced.parameters, trainable_params=traced.trainable, layers=0)
