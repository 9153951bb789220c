"""A recipe on the GPUs of a job. One GPU, the usual case, is answered here; the rules of sharding are read when a job has several."""

from __future__ import annotations

from everybyte.basics.origin import default_of
from everybyte.job import Hardware, Train
from everybyte.layers.network import Network
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.parallel_plan import ParallelPlan
from everybyte.rules.from_job.recipe import Defaults
from everybyte.rules.step.recipe import Recipe


def spread(train: Train, hardware: Hardware | None, network: Network, recipe: Recipe, defaults: Defaults, choices: ResolvedSettings) -> ParallelPlan:
    """How a recipe lies over the GPUs of a job. Raises BadInput for an impossible mesh, Unsupported for axes that the framework does not have here."""
    alone = (hardware.gpus if hardware else None) in (None, 1) and train.mesh is None and train.offload is None
    if alone and train.sharding in (None, "none", "ddp"):
        choices.pick("train.sharding", train.sharding, "none", default_of(defaults.framework))
        return ParallelPlan(recipe)
    from everybyte.rules.from_job.sharding import over_several  # two hundredths of a second that most jobs do not need

    return over_several(train, hardware, network, recipe, defaults, choices)
