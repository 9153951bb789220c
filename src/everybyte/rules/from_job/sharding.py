"""From the train section of a job to the layout of its ranks, for engines that run Hugging Face models and plain loops."""

from __future__ import annotations

from msgspec.structs import replace

from everybyte.basics.errors import Unsupported
from everybyte.basics.origin import default_of
from everybyte.job import Hardware, Train
from everybyte.job.extra import Section, section
from everybyte.job.words import Sharding
from everybyte.layers.network import Network
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.fsdp import FLAT, ROWS, fully_sharded
from everybyte.rules.from_job.parallel_plan import ParallelPlan
from everybyte.rules.from_job.recipe import Defaults, refuse_offload
from everybyte.rules.from_job.zero import STAGES, zero_of
from everybyte.rules.parallel.mesh import Mesh, mesh_of
from everybyte.rules.sharding.ddp import Replicated
from everybyte.rules.sharding.offload import host_lines, states_on_host
from everybyte.rules.step.adapted_network import adapted
from everybyte.rules.step.layout import WHOLE, Layout
from everybyte.rules.step.recipe import Recipe


def over_several(train: Train, hardware: Hardware | None, network: Network, recipe: Recipe, defaults: Defaults, choices: ResolvedSettings) -> ParallelPlan:
    """How a recipe lies over the GPUs of a job. Raises Unsupported for axes that models of transformers do not have here."""
    gpus = (hardware.gpus if hardware else None) or 1
    usual: Sharding = "none" if gpus == 1 else "ddp"
    sharding = choices.pick("train.sharding", train.sharding, usual, default_of(defaults.framework))
    mesh = mesh_of(train, hardware, network, choices, sharding=sharding)
    for axis in ("tp", "pp", "ep", "etp"):
        if (size := getattr(mesh, axis)) > 1:
            raise Unsupported(f"train.mesh.{axis}", f"{size}: {defaults.framework} supports data parallelism only; megatron and torchtitan support this axis")
    if sharding not in (*STAGES, *FLAT, *ROWS) and not _steps_on_host(train, mesh):
        refuse_offload(train)
    return replace(_laid_out(train, sharding, mesh, network, _shorter(recipe, mesh), defaults, choices), mesh=mesh)


def _laid_out(train: Train, sharding: str, mesh: Mesh, network: Network, recipe: Recipe, defaults: Defaults, choices: ResolvedSettings) -> ParallelPlan:
    if sharding in ("none", "ddp") and _steps_on_host(train, mesh):
        choices.assume("train.offload.optimizer: cpu is torchao's CPUOffloadOptimizer; gradients stay on the GPU until the step")
        recipe, rows = states_on_host(adapted(network, recipe.setup), recipe)
        return ParallelPlan(recipe, WHOLE, mesh.gpus, host=rows)
    if sharding in ("none", "ddp"):
        layout = _replicated(train) if mesh.gpus > 1 else WHOLE
        return ParallelPlan(recipe, layout, mesh.gpus)
    if sharding in STAGES:
        recipe, zero = zero_of(train, mesh, network, recipe, defaults, choices)
        return ParallelPlan(recipe, zero, mesh.gpus, host=host_lines(zero, adapted(network, recipe.setup), recipe))
    if sharding in (*FLAT, *ROWS):
        return fully_sharded(train, sharding, mesh, network, recipe, defaults.conventions, choices)
    raise Unsupported(
        "train.sharding", f"{sharding!r} is not supported for {defaults.framework} yet; supported: none, ddp, {', '.join((*STAGES, *FLAT, *ROWS))}"
    )


def _steps_on_host(train: Train, mesh: Mesh) -> bool:
    """One GPU with its optimizer on the host."""
    offload = train.offload
    return mesh.gpus == 1 and offload is not None and offload.optimizer == "cpu" and offload.params in (None, "none") and offload.fraction is None


def _shorter(recipe: Recipe, mesh: Mesh) -> Recipe:
    """Each rank of a sequence has its share of the tokens; queries still see all keys."""
    ways = mesh.sequence_parallel
    batch = recipe.batch
    return recipe if ways == 1 else replace(recipe, batch=batch._replace(s=batch.s // ways, t=batch.t // ways))


class DdpKeys(Section, frozen=True, kw_only=True):
    """Keys of train.extra that DistributedDataParallel reads."""

    gradient_as_bucket_view: bool = False


def _replicated(train: Train) -> Layout:
    return Replicated(views=section(train.extra, DdpKeys).gradient_as_bucket_view)
