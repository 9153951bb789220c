"""From the train section of a job to ZeRO's settings: DeepSpeed's own defaults, those of the frameworks that ship a configuration, the job's keys."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from everybyte.basics.dtypes import BF16, FP16, FP32, DType, dtype
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.origin import USER, default_of
from everybyte.catalog.releases import release_in
from everybyte.catalog.zero_presets import zero_preset
from everybyte.job import Train
from everybyte.job.extra import Section, section
from everybyte.layers.network import Network
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.recipe import Defaults
from everybyte.rules.parallel.mesh import Mesh
from everybyte.rules.sharding.zero.settings import Place, ZeroSettings
from everybyte.rules.sharding.zero.zero3 import ZeroCut
from everybyte.rules.sharding.zero.zero12 import ZeroFlat
from everybyte.rules.step.layout import Layout
from everybyte.rules.step.recipe import Recipe

STAGES: dict[str, Literal[1, 2, 3]] = {"zero1": 1, "zero2": 2, "zero3": 3}
AUTO = "auto"
"""A size that transformers works out of the model's width (integrations/deepspeed.py trainer_config_finalize)."""

Elements = Annotated[int, msgspec.Meta(ge=0)] | Annotated[float, msgspec.Meta(ge=0)] | Literal["auto"] | None
"""A size, as JSON has it (1e9), or `auto`."""


class ZeroKeys(Section, frozen=True, kw_only=True):
    """Keys of train.extra that DeepSpeed's configuration has."""

    reduce_bucket_size: Elements = None
    stage3_prefetch_bucket_size: Elements = None
    stage3_param_persistence_threshold: Elements = None
    stage3_model_persistence_threshold: Elements = None
    stage3_max_live_parameters: Elements = None
    stage3_max_reuse_distance: Elements = None
    sub_group_size: Elements = None
    zero_hpz_partition_size: Elements = None
    max_in_cpu: Elements = None
    param_buffer_count: Elements = None
    param_buffer_size: Elements = None
    optimizer_buffer_count: Elements = None
    overlap_comm: bool | None = None
    contiguous_gradients: bool | None = None
    round_robin_gradients: bool | None = None
    check_grad_overflow: bool | None = None
    pin_memory: bool | None = None
    mics_shard_size: int = -1
    grad_accum_dtype: str | None = None
    bf16_master_weights_and_grads: bool = False
    fp16_master_weights_and_grads: bool = False
    bf16_optimizer_states: bool = False
    torch_autocast: dict[str, Any] | None = None
    zero_quantized_weights: bool = False
    zero_quantized_gradients: bool = False
    zero_quantized_nontrainable_weights: bool = False
    super_offload: bool = False
    zenflow: dict[str, Any] | bool = False


SIZES = {
    "reduce_bucket_size": "reduce_bucket",
    "stage3_prefetch_bucket_size": "prefetch",
    "stage3_param_persistence_threshold": "persistence",
    "stage3_model_persistence_threshold": "model_persistence",
    "stage3_max_live_parameters": "live",
    "stage3_max_reuse_distance": "reuse",
    "sub_group_size": "sub_group",
    "zero_hpz_partition_size": "hpz",
    "max_in_cpu": "max_in_cpu",
    "param_buffer_count": "param_buffers",
    "param_buffer_size": "param_buffer",
    "optimizer_buffer_count": "optimizer_buffers",
}
"""DeepSpeed's names of sizes -> ours."""
FLAGS = {
    "overlap_comm": "overlap",
    "contiguous_gradients": "contiguous",
    "round_robin_gradients": "round_robin",
    "check_grad_overflow": "checks_overflow",
    "pin_memory": "pinned",
}
"""DeepSpeed's names of switches -> ours."""
REFUSED = ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights", "super_offload", "zenflow")
"""Features that change what is held, and are not worked out."""
PUBLIC = {ours: theirs for theirs, ours in (SIZES | FLAGS).items()}


def zero_of(train: Train, mesh: Mesh, network: Network, recipe: Recipe, defaults: Defaults, choices: ResolvedSettings) -> tuple[Recipe, Layout]:
    """The recipe as DeepSpeed runs it, and what a rank holds of it. Raises BadInput or Unsupported with the key's path."""
    stage = STAGES[train.sharding or ""]
    keys = section(train.extra, ZeroKeys)
    _refuse(keys)
    if train.buckets is not None and train.buckets.gather is not None:
        choices.warn("train.buckets.gather has no effect: updated weights are gathered where they lie (all_gather_into_tensor)")
    settings = _settings(train, stage, mesh, network, recipe, defaults, choices)
    recipe = _as_deepspeed_runs_it(recipe, settings, keys)
    if settings.sharded_gradients:
        recipe = replace(recipe, gradients_live="never")
    return recipe, ZeroCut(settings) if stage == 3 else ZeroFlat(settings)


def _refuse(keys: ZeroKeys) -> None:
    found = next((key for key in REFUSED if getattr(keys, key)), None)
    if found is not None:
        raise Unsupported(f"train.extra.{found}", "is not supported yet; leave it out")


def _settings(
    train: Train, stage: Literal[1, 2, 3], mesh: Mesh, network: Network, recipe: Recipe, defaults: Defaults, choices: ResolvedSettings
) -> ZeroSettings:
    keys = section(train.extra, ZeroKeys)
    preset = zero_preset(defaults.conventions.zero_preset, stage)
    release = release_in(train.version, "deepspeed")
    chosen: dict[str, Any] = {"overlap": stage == 3, "pinned": release.has("pins_by_default"), **preset}
    given = _given(train)
    if stage == 1 and release.has("stage1_ignores_overlap"):
        given |= {"overlap": False, "contiguous": False}
    _note(chosen, given, defaults.framework, choices)
    found: dict[str, Any] = {name: _auto(name, network.hidden) if value == AUTO else value for name, value in (chosen | given).items()}
    place = _places(train, stage)
    return ZeroSettings(
        stage=stage,
        degree=_degree(keys, mesh),
        accumulates=recipe.gradients_live == "always",
        accumulation=_accumulation(keys),
        master=_master(recipe, keys),
        bucket_before_loss=release.has("bucket_before_loss"),
        **found,
        **place,
    )


def _degree(keys: ZeroKeys, mesh: Mesh) -> int:
    """MiCS shards within groups of ranks."""
    size = keys.mics_shard_size
    if size > 0 and mesh.shards % size:
        raise BadInput("train.extra.mics_shard_size", f"must divide the {mesh.shards} ranks that share the states, not {size!r}")
    return size if size > 0 else mesh.shards


def _given(train: Train) -> dict[str, Any]:
    """The job's own settings, by our names."""
    keys, found = section(train.extra, ZeroKeys), {}
    for theirs, ours in (SIZES | FLAGS).items():
        if (value := getattr(keys, theirs)) is not None:
            found[ours] = value if theirs in FLAGS else _size(value, f"train.extra.{theirs}")
    if (buckets := train.buckets) is not None:
        own = {"reduce_bucket": buckets.reduce, "prefetch": buckets.prefetch, "live": buckets.live}
        found |= {name: size for name, size in own.items() if size is not None}
    return found


def _size(value: float | str, path: str) -> int | str:
    if isinstance(value, str):
        return AUTO
    if value != int(value):
        raise BadInput(path, f"must be a number of elements or auto, not {value!r}")
    return int(value)


def _note(chosen: dict[str, Any], given: dict[str, Any], framework: str, choices: ResolvedSettings) -> None:
    for name, value in (chosen | given).items():
        choices.note(f"train.extra.{PUBLIC[name]}", value, USER if name in given else default_of(framework))


def _auto(name: str, hidden: int) -> int:
    """transformers/integrations/deepspeed.py trainer_config_finalize."""
    sizes = {"reduce_bucket": hidden * hidden, "prefetch": int(0.9 * hidden * hidden), "persistence": 10 * hidden}
    if name not in sizes:
        raise BadInput(f"train.extra.{PUBLIC[name]}", "has no automatic value; give a number of elements")
    return sizes[name]


def _places(train: Train, stage: int) -> dict[str, Any]:
    """Where states and weights wait. DeepSpeed's own checks, with the key of the job."""
    offload = train.offload
    if offload is None:
        return {}
    optimizer: Place = offload.optimizer or "none"
    params: Place = offload.params or "none"
    if stage < 3 and params != "none":
        raise BadInput("train.offload.params", f"{params}: ZeRO-{stage} keeps whole weights on every GPU; offloading them needs zero3")
    if stage < 3 and optimizer == "nvme":
        raise BadInput("train.offload.optimizer", f"nvme needs zero3; ZeRO-{stage} offloads to cpu alone")
    ratio = 1.0 if offload.fraction is None else float(offload.fraction)
    if ratio < 1 and stage < 3:
        raise BadInput("train.offload.fraction", f"{ratio}: states are offloaded in part by zero3 alone")
    return {"optimizer": optimizer, "params": params, "ratio": ratio}


def _accumulation(keys: ZeroKeys) -> DType | None:
    return None if keys.grad_accum_dtype is None else dtype(keys.grad_accum_dtype, "train.extra.grad_accum_dtype")


def _master(recipe: Recipe, keys: ZeroKeys) -> DType:
    """The type of the optimizer's partition: fp32 unless 16-bit master weights are asked for."""
    if keys.bf16_master_weights_and_grads:
        return BF16
    if keys.fp16_master_weights_and_grads:
        return FP16
    return recipe.optimizer.master or FP32


def _as_deepspeed_runs_it(recipe: Recipe, settings: ZeroSettings, keys: ZeroKeys) -> Recipe:
    """DeepSpeed turns the module into the 16-bit type, adapters and norms included, and uses no autocast (engine.py _configure_distributed_model);
    the optimizer steps a partition of its own, in fp32 training too."""
    setup = recipe.setup
    half = setup.compute or setup.weights
    compute = None
    autocast = keys.torch_autocast
    if autocast is not None and autocast.get("enabled"):
        compute = dtype(str(autocast.get("dtype", "bf16")).replace("bfloat16", "bf16").replace("float16", "fp16"), "train.extra.torch_autocast.dtype")
    adapter = None if setup.adapter is None else replace(setup.adapter, dtype=half)
    setup = replace(setup, weights=half, compute=compute, adapter=adapter, norm_weights=None, outer_weights=None)
    state = BF16 if keys.bf16_optimizer_states else recipe.optimizer.state
    optimizer = replace(recipe.optimizer, master=settings.master, state=state)
    return replace(recipe, setup=setup, optimizer=optimizer, stream=half, gradient=None)
