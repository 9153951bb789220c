"""Pipeline stages of torchtitan: which part of the network each rank has, and how many micro-batches wait there."""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from everybyte.basics.record import Record
from everybyte.engines.torchtitan.release import Release
from everybyte.layers.network import Network, Run
from everybyte.rules.pipeline import in_flight
from everybyte.rules.schedules import Plan
from everybyte.rules.stages import Stage, weighted
from everybyte.rules.step import Waiting


class Share(Record, frozen=True):
    """The part of one pipeline rank."""

    network: Network
    waiting: Waiting
    label: str
    stage: int


def counts(layers: int, plan: Plan, release: Release) -> tuple[int, ...]:
    """Layers of each stage in the order of the model where the job does not say: since #1416 embedding and head count as a layer each; before, layers
    that are left over went to the stages behind the first (parallelisms/pipelining_utils.py generate_split_points)."""
    stages = plan.pp * plan.virtual
    if release.weighs_ends:
        return weighted(layers, stages)
    even, more = divmod(layers, stages)
    last = even + max(more - (stages - 2), 0) if stages > 1 else layers
    return (*(even + (0 < stage <= min(more, stages - 2)) for stage in range(stages - 1)), last)


@lru_cache(maxsize=1024)
def share(network: Network, stage: Stage, plan: Plan) -> Share:
    """What one rank holds of a network, and what waits there beside the micro-batch that runs through all its chunks."""
    runs, waiting = [], []
    flight = in_flight(plan, stage.index, [len(chunk) for chunk in stage.chunks])
    for chunk, beside in zip(stage.chunks, flight.counts, strict=True):
        pieces = [piece for run in network.runs if (piece := _piece(run, chunk)) is not None]
        runs += pieces
        waiting += [(piece.label, beside - 1) for piece in pieces if beside > 1]
    own = replace(
        network, runs=tuple(runs), stem=network.stem if stage.has_embedding else None, head=network.head if stage.has_head else None, tied=False,
    )  # fmt: skip
    return Share(own, tuple(waiting), f"pp{stage.index}", stage.index)


def _piece(run: Run, layers: tuple[int, ...]) -> Run | None:
    """The layers of a run that are among consecutive `layers`."""
    if not layers:
        return None
    first, last = max(run.first, layers[0]), min(run.first + run.count, layers[-1] + 1)
    return replace(run, first=first, count=last - first) if first < last else None
