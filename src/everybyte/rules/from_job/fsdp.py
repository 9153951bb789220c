"""From the train section of a job to FSDP's layout: as accelerate wraps models, by version, or as a plain loop does.

Read in accelerate 0.33 to 1.15 (accelerator.py prepare_model and no_sync, utils/fsdp_utils.py fsdp2_prepare_model, utils/dataclasses.py
FullyShardedDataParallelPlugin), transformers 4.41 to 5.24 (trainer.py), axolotl 067b021c (monkeypatch/accelerate/fsdp2.py), torch 2.13.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec.structs import replace

from everybyte.basics.dtypes import FP32, DType, dtype
from everybyte.basics.errors import Unsupported
from everybyte.basics.record import Record
from everybyte.catalog.releases import release_in
from everybyte.job import Train
from everybyte.job.extra import Section, section
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.ledger.build import Line
from everybyte.rules.accounting.conventions import Conventions
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.parallel_plan import ParallelPlan
from everybyte.rules.parallel.mesh import Mesh
from everybyte.rules.sharding.fsdp1 import Fsdp1
from everybyte.rules.sharding.fsdp2 import Fsdp2
from everybyte.rules.sharding.fsdp_units import Units
from everybyte.rules.sharding.fully_sharded import Sharded
from everybyte.rules.sharding.offload import tensors_on_host
from everybyte.rules.step.adapted_network import adapted
from everybyte.rules.step.persistent_state import groups, parameter_tensors, shape
from everybyte.rules.step.recipe import Recipe

FLAT = ("fsdp1", "fsdp1-grad-op")
ROWS = ("fsdp2", "fsdp2-no-reshard", "hsdp")
SHARDED_TENSORS = {"gptq": 2}
"""Of a packed weight's tensors, how many are parameters that FSDP shards: fms-acceleration's autogptq_utils.py makes qweight and qzeros
parameters, scales and g_idx stay with every rank; of bitsandbytes' formats the packed numbers alone."""


Upcast = Literal["all", "trained", "none"]


class FsdpKeys(Section, frozen=True, kw_only=True):
    """Keys of train.extra that FSDP reads, by torch's names or by those of accelerate's settings (`fsdp_...`)."""

    sync_each_batch: bool = False
    """Gradients of every micro-batch are shared (accelerate's sync_each_batch)."""
    ignored_modules: tuple[str, ...] | str | bool | None = None
    """Modules that stay whole on every rank."""
    backward_prefetch: str | None = None
    fsdp_backward_prefetch: str | None = None
    forward_prefetch: bool | None = None
    fsdp_forward_prefetch: bool | None = None
    use_orig_params: bool | None = None
    fsdp_use_orig_params: bool | None = None


class Wrapping(Record, frozen=True):
    """What a framework does to a model before and while FSDP runs it."""

    upcast: Upcast = "none"
    """Which weights become fp32 where there is a mixed precision policy."""
    ends_apart: bool = False
    defers: bool = False
    """Gradients of all micro-batches but the last are accumulated whole (no_sync)."""


def wrapping_of(train: Train, sharding: str, conventions: Conventions) -> Wrapping:
    """How a framework wraps; a plain loop wraps blocks and root as they are, and shares the gradients of every micro-batch."""
    if not conventions.by_accelerate:
        return Wrapping()
    release = release_in(train.version, "accelerate")
    each_batch = section(train.extra, FsdpKeys).sync_each_batch
    if sharding in FLAT:
        return Wrapping("trained", defers=not each_batch)
    defers = release.has("defers_rows") and not each_batch
    if conventions.wraps == "accelerate uncast":
        return Wrapping("none", defers=defers)
    upcast: Upcast = "all" if release.has("casts_whole_model") else ("trained" if release.has("casts_trained") else "none")
    return Wrapping(upcast, release.has("ends_apart"), defers)


def fully_sharded(
    train: Train, sharding: str, mesh: Mesh, network: Network, recipe: Recipe, conventions: Conventions, choices: ResolvedSettings
) -> ParallelPlan:
    """The recipe under FSDP1 or FSDP2."""
    ways = wrapping_of(train, sharding, conventions)
    setup, on_host = recipe.setup, _on_host(train)
    stored, frozen = _stored(setup, ways)
    if setup.compute is not None:
        # weights are gathered in the type of the mixed precision policy, whatever the shards are
        setup = replace(setup, weights=setup.compute)
    packed = setup.packed.format if setup.packed is not None else ""
    shared: dict[str, Any] = {
        "degree": mesh.shards,
        "stored": stored,
        "stored_frozen": frozen,
        "packed_tensors": SHARDED_TENSORS.get(packed, 1),
        "on_host": on_host,
        "ignores_adapters": bool(section(train.extra, FsdpKeys).ignored_modules),
        "unsharded": ways.defers and recipe.gradients_live == "always",
    }
    if shared["unsharded"]:
        choices.warn("train.grad_accum: no_sync leaves every rank whole gradients of earlier micro-batches; train.extra.sync_each_batch: true shards them")
    # gradients have the type of what they belong to: whole ones that of the layers, shares that of the shards
    recipe = replace(recipe, setup=setup, stream=setup.weights, gradient=None)
    layout: Sharded
    if sharding in FLAT:
        layout = _flat(train, sharding, recipe, conventions, shared)
        keeps = _keeps_originals(train, conventions)
        choices.assume("FSDP1 wraps each block (transformer based policy)" + (": the shared gradient stays until the next forward" if keeps else ""))
        recipe = replace(recipe, gradients_between=keeps and not on_host)
    else:
        layout = _rows(train, sharding, network, ways, shared)
    host = host_lines(replace(layout, on_host=False), adapted(network, setup), recipe) if on_host else ()
    return ParallelPlan(recipe, layout, mesh.gpus, host=host)


def _flat(train: Train, sharding: str, recipe: Recipe, conventions: Conventions, shared: dict[str, Any]) -> Fsdp1:
    """accelerate asks for no prefetching where nobody does; torch's own default is BACKWARD_PRE."""
    blocks = release_in(train.version, "transformers").has("blocks_recompute_themselves")
    reruns_units = recipe.recompute.mode == "reentrant" and not blocks
    keys = section(train.extra, FsdpKeys)
    usual = "no_prefetch" if conventions.by_accelerate else "backward_pre"
    prefetch = (keys.backward_prefetch or keys.fsdp_backward_prefetch or usual).casefold()
    return Fsdp1(
        **shared,
        reruns=reruns_units,
        prefetches=prefetch == "backward_pre" and not reruns_units,
        prefetches_forward=bool(_first(keys.forward_prefetch, keys.fsdp_forward_prefetch)),
        gathers_once=sharding == "fsdp1-grad-op",
        holds_inputs=reruns_units and recipe.setup.adapter is not None,
    )


def _keeps_originals(train: Train, conventions: Conventions) -> bool:
    """use_orig_params, which accelerate turns on."""
    keys = section(train.extra, FsdpKeys)
    said = _first(keys.use_orig_params, keys.fsdp_use_orig_params)
    return conventions.by_accelerate if said is None else said


def _first(*stated: bool | None) -> bool | None:
    """The first of several switches that is given."""
    return next((value for value in stated if value is not None), None)


def _rows(train: Train, sharding: str, network: Network, ways: Wrapping, shared: dict[str, Any]) -> Fsdp2:
    """MixedPrecisionPolicy's types: accelerate's reduce_dtype is its param_dtype; so is torch's where none is named."""
    named = train.dtypes.reduce if train.dtypes is not None else None
    reduce = None if named in (None, "none") else dtype(str(named), "train.dtypes.reduce")
    ends = ways.ends_apart and not network.tied
    return Fsdp2(
        **shared,
        reduce=reduce,
        reshards=sharding != "fsdp2-no-reshard",
        units=Units(("embed", network.tail_label, "head") if ends else ()),
        kept_units=(network.tail_label, "head") if ends else (),
    )


def _stored(setup: Setup, ways: Wrapping) -> tuple[DType | None, DType | None]:
    """(type of trained shards, type of frozen shards); None: as the layers compute."""
    if setup.compute is None:
        return None, None
    loaded = None if setup.weights == setup.compute else setup.weights
    return (loaded if ways.upcast == "none" else FP32), (FP32 if ways.upcast == "all" else loaded)


def _on_host(train: Train) -> bool:
    """Whether shards, gradients and states live in host memory. Raises Unsupported for what FSDP does not do."""
    offload = train.offload
    params, optimizer = (None, None) if offload is None else (offload.params, offload.optimizer)
    if params in (None, "none"):
        if optimizer not in (None, "none"):
            raise Unsupported("train.offload.optimizer", "FSDP offloads weights, gradients and optimizer together: say train.offload.params: cpu")
        return False
    if params != "cpu" or optimizer == "none" or (offload is not None and offload.fraction is not None):
        raise Unsupported("train.offload.params", "FSDP offloads weights, gradients and optimizer together, all of them, to host memory: say cpu")
    return True


def host_lines(layout: Sharded, network: Network, recipe: Recipe) -> tuple[Line, ...]:
    """What each rank keeps in host memory: pinned shards and gradients, and the states of an optimizer that steps there."""
    weights, gradients, states = [], [], []
    for group in groups(network, recipe.setup, layout):
        for p in group.members:
            times = p.count * group.copies
            weights += parameter_tensors(p, recipe.setup) * times
            if p.trainable and not p.buffer:
                gradients += [p.dtype.nbytes(p.numel // p.count)] * times
                states += list(recipe.optimizer.state_tensors(shape(p), p.dtype, p.name)) * times
    source = "torch/distributed/fsdp: CPUOffload, CPUOffloadPolicy"
    return (
        tensors_on_host("host/weights", "parameter", weights, source, pinned=True),
        tensors_on_host("host/gradients", "gradient", gradients, source, pinned=True),
        tensors_on_host("host/optimizer", "optimizer_state", states, str(recipe.optimizer.rule.citation)),
    )
