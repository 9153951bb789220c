"""What all stages of a job have in common."""

from __future__ import annotations

from everybyte.basics.record import Record
from everybyte.engines.megatron.kernels import Versions
from everybyte.engines.megatron.layout import MegatronLayout
from everybyte.engines.megatron.network import Recomputed, StagePlan, stage_plan
from everybyte.engines.megatron.sizes import Split
from everybyte.engines.megatron.style import Style
from everybyte.layers.network import Network
from everybyte.ledger.build import Line
from everybyte.rules.parallel.schedules import Plan
from everybyte.rules.parallel.stages import Stage
from everybyte.rules.step.recipe import Recipe


class Run(Record, frozen=True):
    """A job as Megatron-LM runs it."""

    network: Network
    vocab: int
    split: Split
    style: Style
    recipe: Recipe
    layout: MegatronLayout
    full: Recomputed | None
    capability: str
    plan: Plan | None
    """None without a pipeline."""
    versions: Versions
    workspaces: tuple[Line, ...] = ()
    graph_workspaces: tuple[Line, ...] = ()
    deferred: int = 0
    """Micro-batches for which the head's weight gradient waits."""

    def part(self, stage: Stage, order: tuple[int, ...] | None = None) -> StagePlan:
        """The network of a stage, or of some of its chunks; the chunk that runs comes last."""
        return stage_plan(self.network, stage, self.split, self.style, self.vocab, self.full, all_chunks(stage) if order is None else order)


def all_chunks(stage: Stage) -> tuple[int, ...]:
    """The chunks of a stage, that with the head last."""
    return tuple(sorted(range(len(stage.chunks)), key=lambda chunk: (chunk == stage.head, chunk)))
