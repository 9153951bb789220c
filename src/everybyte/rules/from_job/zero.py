"""From the train section of a job to ZeRO's settings: DeepSpeed's own defaults, those of the frameworks that ship a configuration, the job's keys."""

from __future__ import annotations

from typing import Any, Literal

from msgspec.structs import replace

from everybyte.basics.dtypes import BF16, FP16, FP32, DType, dtype
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.origin import USER, default_of
from everybyte.catalog.releases import release_in
from everybyte.job import Train
from everybyte.layers.network import Network
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.parallel.mesh import Mesh
from everybyte.rules.sharding.zero.settings import Place, ZeroSettings
from everybyte.rules.sharding.zero.zero3 import ZeroCut
from everybyte.rules.sharding.zero.zero12 import ZeroFlat
from everybyte.rules.step.layout import Layout
from everybyte.rules.step.recipe import Recipe

STAGES: dict[str, Literal[1, 2, 3]] = {"zero1": 1, "zero2": 2, "zero3": 3}
AUTO = "auto"
"""A size that transformers works out of the model's width (integrations/deepspeed.py trainer_config_finalize)."""

PRESETS: dict[str, dict[int, dict[str, Any]]] = {
    "transformers": {
        1: {"overlap": True, "pinned": True},
        2: {"overlap": True, "pinned": True},
        3: {"overlap": True, "pinned": True, "reduce_bucket": AUTO, "prefetch": AUTO, "persistence": AUTO},
    },
    "axolotl": {
        1: {"overlap": True},
        2: {"overlap": True},
        3: {"overlap": True, "reduce_bucket": AUTO, "prefetch": AUTO, "persistence": AUTO, "sub_group": 0, "live": 0, "reuse": 0},
    },
    "llama-factory": {
        2: {"round_robin": True, "pinned": True},
        3: {"overlap": False, "pinned": True, "reduce_bucket": AUTO, "prefetch": AUTO, "persistence": AUTO},
    },
    "ms-swift": {
        2: {"reduce_bucket": 200_000_000, "pinned": True},
        3: {"overlap": False, "pinned": True, "reduce_bucket": AUTO, "prefetch": AUTO, "persistence": AUTO},
    },
}  # fmt: skip
"""The configurations that frameworks ship, where they differ from DeepSpeed's defaults, by stage: transformers docs/source/en/deepspeed.md;
axolotl deepspeed_configs/zero{1,2,3_bf16}.json; LLaMA-Factory examples/deepspeed/ds_z{2,3}_config.json; ms-swift swift/config/zero{2,3}.json.
accelerate and trl write none of these keys (accelerate utils/dataclasses.py DeepSpeedPlugin)."""

SIZES = {
    "reduce_bucket_size": "reduce_bucket", "stage3_prefetch_bucket_size": "prefetch", "stage3_param_persistence_threshold": "persistence",
    "stage3_model_persistence_threshold": "model_persistence", "stage3_max_live_parameters": "live", "stage3_max_reuse_distance": "reuse",
    "sub_group_size": "sub_group", "zero_hpz_partition_size": "hpz", "max_in_cpu": "max_in_cpu", "param_buffer_count": "param_buffers",
    "param_buffer_size": "param_buffer", "optimizer_buffer_count": "optimizer_buffers",
}  # fmt: skip
"""DeepSpeed's names of sizes -> ours."""
FLAGS = {
    "overlap_comm": "overlap", "contiguous_gradients": "contiguous", "round_robin_gradients": "round_robin", "check_grad_overflow": "checks_overflow",
    "pin_memory": "pinned",
}  # fmt: skip
"""DeepSpeed's names of switches -> ours."""
REFUSED = ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights", "super_offload", "zenflow")
"""Features that change what is held, and are not worked out."""
PUBLIC = {ours: theirs for theirs, ours in (SIZES | FLAGS).items()}


def zero_of(train: Train, mesh: Mesh, network: Network, recipe: Recipe, framework: str, choices: ResolvedSettings) -> tuple[Recipe, Layout]:
    """The recipe as DeepSpeed runs it, and what a rank holds of it. Raises BadInput or Unsupported with the key's path."""
    stage = STAGES[train.sharding or ""]
    extra = train.extra or {}
    _refuse(extra)
    if train.buckets is not None and train.buckets.gather is not None:
        choices.warn("train.buckets.gather has no effect: updated weights are gathered where they lie (all_gather_into_tensor)")
    settings = _settings(train, stage, mesh, network, recipe, framework, choices)
    recipe = _as_deepspeed_runs_it(recipe, settings, extra)
    if settings.sharded_gradients:
        recipe = replace(recipe, gradients_live="never")
    return recipe, ZeroCut(settings) if stage == 3 else ZeroFlat(settings)


def _refuse(extra: dict[str, Any]) -> None:
    found = next((key for key in REFUSED if extra.get(key)), None)
    if found is not None:
        raise Unsupported(f"train.extra.{found}", "is not supported yet; leave it out")


def _settings(train: Train, stage: Literal[1, 2, 3], mesh: Mesh, network: Network, recipe: Recipe, framework: str, choices: ResolvedSettings) -> ZeroSettings:
    extra = train.extra or {}
    preset = PRESETS.get(str(extra.get("framework", "")), PRESETS.get(train.framework or "", {})).get(stage, {})
    release = release_in(train.version, "deepspeed")
    chosen: dict[str, Any] = {"overlap": stage == 3, "pinned": release.has("pins_by_default"), **preset}
    given = _given(train)
    if stage == 1 and release.has("stage1_ignores_overlap"):
        given |= {"overlap": False, "contiguous": False}
    _note(chosen, given, framework, choices)
    found: dict[str, Any] = {name: _auto(name, network.hidden) if value == AUTO else value for name, value in (chosen | given).items()}
    place = _places(train, stage)
    return ZeroSettings(
        stage=stage, degree=_degree(extra, mesh), accumulates=recipe.gradients_live == "always", accumulation=_dtype(extra, "grad_accum_dtype"),
        master=_master(recipe, extra), bucket_before_loss=release.has("bucket_before_loss"), **found, **place,
    )  # fmt: skip


def _degree(extra: dict[str, Any], mesh: Mesh) -> int:
    """MiCS shards within groups of ranks."""
    size = extra.get("mics_shard_size", -1)
    if not isinstance(size, int) or isinstance(size, bool) or (size > 0 and mesh.shards % size):
        raise BadInput("train.extra.mics_shard_size", f"must divide the {mesh.shards} ranks that share the states, not {size!r}")
    return size if size > 0 else mesh.shards


def _given(train: Train) -> dict[str, Any]:
    """The job's own settings, by our names."""
    extra, found = train.extra or {}, {}
    for theirs, ours in SIZES.items():
        if theirs in extra:
            found[ours] = _size(extra[theirs], f"train.extra.{theirs}")
    for theirs, ours in FLAGS.items():
        if theirs in extra:
            if not isinstance(extra[theirs], bool):
                raise BadInput(f"train.extra.{theirs}", f"must be true or false, not {extra[theirs]!r}")
            found[ours] = extra[theirs]
    if (buckets := train.buckets) is not None:
        own = {"reduce_bucket": buckets.reduce, "prefetch": buckets.prefetch, "live": buckets.live}
        found |= {name: size for name, size in own.items() if size is not None}
    return found


def _size(value: Any, path: str) -> int | str:
    if value == AUTO:
        return AUTO
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
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


def _dtype(extra: dict[str, Any], key: str) -> DType | None:
    return dtype(str(extra[key]), f"train.extra.{key}") if extra.get(key) is not None else None


def _master(recipe: Recipe, extra: dict[str, Any]) -> DType:
    """The type of the optimizer's partition: fp32 unless 16-bit master weights are asked for."""
    if extra.get("bf16_master_weights_and_grads"):
        return BF16
    if extra.get("fp16_master_weights_and_grads"):
        return FP16
    return recipe.optimizer.master or FP32


def _as_deepspeed_runs_it(recipe: Recipe, settings: ZeroSettings, extra: dict[str, Any]) -> Recipe:
    """DeepSpeed turns the module into the 16-bit type, adapters and norms included, and uses no autocast (engine.py _configure_distributed_model);
    the optimizer steps a partition of its own, in fp32 training too."""
    setup = recipe.setup
    half = setup.compute or setup.weights
    compute = None
    autocast = extra.get("torch_autocast")
    if isinstance(autocast, dict) and autocast.get("enabled"):
        compute = dtype(str(autocast.get("dtype", "bf16")).replace("bfloat16", "bf16").replace("float16", "fp16"), "train.extra.torch_autocast.dtype")
    adapter = None if setup.adapter is None else replace(setup.adapter, dtype=half)
    setup = replace(setup, weights=half, compute=compute, adapter=adapter, norm_weights=None, outer_weights=None)
    state = BF16 if extra.get("bf16_optimizer_states") else recipe.optimizer.state
    optimizer = replace(recipe.optimizer, master=settings.master, state=state)
    return replace(recipe, setup=setup, optimizer=optimizer, stream=half, gradient=None)
