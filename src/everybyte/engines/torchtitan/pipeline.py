"""Pipeline stages of torchtitan: which part of the network each rank has, and how many micro-batches wait there."""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from everybyte.basics.dtypes import BF16
from everybyte.basics.record import Record
from everybyte.catalog.releases import Release
from everybyte.engines.torchtitan.block import StageEnd
from everybyte.layers.network import Network, Run
from everybyte.layers.recording.size import Batch, Point, Size
from everybyte.ledger.build import Line, plain
from everybyte.rules.parallel.pipeline import Flight, in_flight
from everybyte.rules.parallel.schedules import Plan
from everybyte.rules.parallel.stages import Stage, weighted
from everybyte.rules.sharding.fsdp2 import Fsdp2
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.timeline import Waiting

RECEIVED = (
    "torch.distributed.pipelining stage.py: tensors for the input of every micro-batch (_prepare_forward_infra) and for the gradient of its output "
    "(_create_grad_recv_info), made once"
)


class StageShards(Fsdp2, frozen=True):
    """FSDP2 on a rank with several stages: each shares its whole gradients behind its own last backward pass (torch.distributed.pipelining
    schedules.py `last_backward`). Where micro-batches are one group, all have left the later stage before the first comes back to the earlier one."""

    shared: tuple[str, ...] = ()
    """Pieces of the network whose gradients are not whole while the rank keeps most."""

    @property
    def tells_apart(self) -> bool:
        """By their labels, those whose gradients are shared."""
        return bool(self.shared)

    def whole(self, part: str) -> bool:
        """Whether gradients of a piece stay whole from one micro-batch to the next."""
        return self.unsharded and part not in self.shared

    def accumulated(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """Whole gradients of one stage, this rank's part of those of the others."""
        others, stage = _divided(network, self.shared)
        return (*Fsdp2.accumulated(self, stage, recipe), *self.gradients(others, recipe))


@lru_cache(maxsize=1024)
def _divided(network: Network, labels: tuple[str, ...]) -> tuple[Network, Network]:
    """The runs with these labels, and the rest with the ends."""
    chosen, rest = (tuple(run for run in network.runs if (run.label in labels) is wanted) for wanted in (True, False))
    return replace(network, runs=chosen, stem=None, head=None), replace(network, runs=rest)


class Share(Record, frozen=True):
    """The part of one pipeline rank."""

    network: Network
    waiting: Waiting
    label: str
    stage: int
    flight: Flight | None = None
    """What is in flight while it needs most; None without a pipeline."""
    shared: tuple[str, ...] = ()
    """Pieces whose gradients are shared apart from those of the busiest stage."""
    received: int = 0
    """Tensors of hidden states that are there for what neighbours send, beside the inputs that are in flight."""

    def buffers(self, batch: Batch) -> tuple[Line, ...]:
        """Tensors of (n/t, h) in which inputs and gradients arrive, as long as the job runs."""
        if not self.received:
            return ()
        size = Size.of(self.network.head_dims, BF16).at(Point(batch))
        text = plain("r·n_h", r=self.received, n_h=size)
        return (Line("pipeline/received", "comm_buffer", self.received * size, text, RECEIVED, "formula"),)


def counts(layers: int, plan: Plan, release: Release) -> tuple[int, ...]:
    """Layers of each stage in the order of the model where the job does not say: since #1416 embedding and head count as a layer each; before, layers
    that are left over went to the stages behind the first (parallelisms/pipelining_utils.py generate_split_points)."""
    stages = plan.pp * plan.virtual
    if release.has("weighs_ends"):
        return weighted(layers, stages)
    even, more = divmod(layers, stages)
    last = even + max(more - (stages - 2), 0) if stages > 1 else layers
    return (*(even + (0 < stage <= min(more, stages - 2)) for stage in range(stages - 1)), last)


@lru_cache(maxsize=16384)
def share(network: Network, stage: Stage, plan: Plan) -> Share:
    """What one rank holds of a network, and what waits there beside the micro-batch that runs through all its chunks."""
    runs, waiting, shared = [], [], []
    flight = in_flight(plan, stage.index, [len(chunk) for chunk in stage.chunks])
    sends = [index for index in range(len(stage.chunks)) if index != stage.head]
    receives = [index for index in range(len(stage.chunks)) if index != stage.embedding]
    apart = plan.schedule == "interleaved" and plan.microbatches <= plan.group
    for index, (chunk, beside) in enumerate(zip(stage.chunks, flight.counts, strict=True)):
        pieces = [piece for run in network.runs if (piece := _piece(run, chunk)) is not None]
        if index in sends:
            pieces.append(Run("sent", index, 1, StageEnd(next_comes=index + 1 < len(stage.chunks)), network.head_dims))
        runs += pieces
        if apart and index + 1 < len(stage.chunks):
            shared += [piece.label for piece in pieces]
        waiting += [(piece.label, beside - 1) for piece in pieces if beside > 1]
    own = replace(
        network,
        runs=tuple(runs),
        stem=network.stem if stage.has_embedding else None,
        head=network.head if stage.has_head else None,
        tied=False,
    )
    received = plan.microbatches * (len(sends) + len(receives)) - sum(flight.counts[index] for index in receives)
    return Share(own, tuple(waiting), f"pp{stage.index}", stage.index, flight, tuple(shared), received)


def _piece(run: Run, layers: tuple[int, ...]) -> Run | None:
    """The layers of a run that are among consecutive `layers`."""
    if not layers:
        return None
    first, last = max(run.first, layers[0]), min(run.first + run.count, layers[-1] + 1)
    return replace(run, first=first, count=last - first) if first < last else None
