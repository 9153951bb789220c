"""LitGPT's scripts on several GPUs: what Fabric's strategies make of a recipe."""

from __future__ import annotations

from msgspec.structs import replace

from everybyte.basics.dtypes import DType
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.origin import default_of
from everybyte.catalog.releases import Release
from everybyte.engines.litgpt.linear import LORA
from everybyte.job import Job
from everybyte.job.words import Sharding
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.tape import Parameter
from everybyte.ledger.build import Line
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.parallel_plan import ParallelPlan
from everybyte.rules.from_job.recipe import refuse_offload
from everybyte.rules.parallel.mesh import Mesh, mesh_of
from everybyte.rules.sharding.ddp import Replicated
from everybyte.rules.sharding.fsdp1 import Fsdp1
from everybyte.rules.sharding.fsdp2 import Fsdp2
from everybyte.rules.step.persistent_state import Trained
from everybyte.rules.step.recipe import Recipe

ROOT = ("*transformer.wte*", "*ln_f*", "*lm_head*")
"""Names of what is in no block."""


class FabricShards(Fsdp1, frozen=True):
    """FSDP1 as Fabric wraps blocks: frozen weights and adapters of a block lie in one flat parameter, all of which gets a gradient. The optimizer is
    given the trained ones alone."""

    stepped: tuple[str, ...] = ("*",)
    """Patterns of the base parameters that the optimizer steps."""

    def _stepped(self, recipe: Recipe) -> Recipe:
        return replace(recipe, setup=replace(recipe.setup, trainable=self.stepped))

    def states(self, network: Network, recipe: Recipe) -> tuple[Line, ...]:
        """States of what is stepped."""
        return super().states(network, self._stepped(recipe))

    def stepped_tensors(self, network: Network, setup: Setup) -> tuple[Parameter, ...]:
        """Those of what is stepped."""
        return super().stepped_tensors(network, replace(setup, trainable=self.stepped))

    def trained(self, network: Network, setup: Setup, gradient: DType | None, stepped: DType | None) -> Trained:
        """The tensors that are stepped."""
        return super().trained(network, replace(setup, trainable=self.stepped), gradient, stepped)


SHARDED = ("fsdp1", "fsdp1-grad-op", "fsdp2", "fsdp2-no-reshard")
"""Fabric's FSDPStrategy by its sharding_strategy, and the scripts' own fully_shard."""


def spread_of(job: Job, network: Network, recipe: Recipe, release: Release, choices: ResolvedSettings) -> ParallelPlan:
    """How a recipe lies over the GPUs of a job. Raises BadInput or Unsupported with the key's path."""
    train = job.train
    assert train is not None
    refuse_offload(train)
    gpus = (job.hardware.gpus if job.hardware else None) or 1
    usual: Sharding = "none" if gpus == 1 else ("fsdp2" if release.has("shards_rows") and recipe.setup.adapter is not None else "fsdp1")
    sharding = choices.pick("train.sharding", train.sharding, usual, default_of(release.title))
    mesh = mesh_of(train, job.hardware, network, choices, sharding=sharding)
    for axis in ("tp", "pp", "ep", "etp", "cp", "ulysses"):
        if (size := getattr(mesh, axis)) > 1:
            raise Unsupported(f"train.mesh.{axis}", f"{size}: LitGPT's scripts know data parallel alone")
    if mesh.gpus == 1:
        if sharding not in ("none", "ddp"):
            raise BadInput("train.sharding", f"is {sharding!r}, but LitGPT's scripts shard on several GPUs alone: say hardware.gpus, or leave it out")
        return ParallelPlan(recipe)
    if recipe.setup.packed is not None:
        raise BadInput("train.quantization", "LitGPT's scripts refuse quantization on several GPUs: leave it out, or say hardware.gpus: 1")
    if sharding in ("none", "ddp"):
        return ParallelPlan(recipe, Replicated(), mesh.gpus, mesh)
    if sharding not in SHARDED:
        raise Unsupported("train.sharding", f"{sharding!r} is not supported for LitGPT; supported: none, ddp, {', '.join(SHARDED)}")
    unsharded = recipe.gradients_live == "always"
    if sharding.startswith("fsdp2"):
        return ParallelPlan(recipe, Fsdp2(degree=mesh.shards, unsharded=unsharded, reshards=sharding == "fsdp2"), mesh.gpus, mesh)
    if unsharded:
        choices.assume("a later micro-batch, which finds whole gradients of earlier ones, may be as long as the longest sample")
    return _flat(replace(recipe, graph_outlives=True), mesh, unsharded, gathers_once=sharding == "fsdp1-grad-op")


def _flat(recipe: Recipe, mesh: Mesh, unsharded: bool, *, gathers_once: bool) -> ParallelPlan:
    """Fabric's no_backward_sync is FSDP's no_sync (lightning/fabric/strategies/fsdp.py _FSDPBackwardSyncControl): whole gradients are accumulated."""
    setup, adapter = recipe.setup, recipe.setup.adapter
    if adapter is not None and adapter.kind != LORA:
        raise Unsupported("train.adapter.kind", f"{adapter.kind!r} on several GPUs is not supported for LitGPT; supported: {LORA} and full training")
    layout = FabricShards(degree=mesh.shards, unsharded=unsharded, adapters_apart=False, stepped=setup.trainable, gathers_once=gathers_once)
    if adapter is not None:
        setup = replace(setup, trainable=("*",), frozen=() if "head" in adapter.targets else ROOT)
    return ParallelPlan(replace(recipe, setup=setup, gradients_between=True), layout, mesh.gpus, mesh)
