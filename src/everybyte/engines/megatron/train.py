"""Accounts for Megatron-LM and for NeMo's Megatron-Bridge."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from everybyte.basics.dtypes import BF16, FP16, FP32, DType, dtype
from everybyte.basics.errors import Unsupported
from everybyte.basics.origin import default_of, inferred
from everybyte.engines.megatron.extra import Keys
from everybyte.engines.megatron.fsdp import FsdpLayout, gradient_type, main_bytes, strategy_of
from everybyte.engines.megatron.kernels import Site, Versions, graph_workspaces, versions_of, workspace_config, workspace_lines
from everybyte.engines.megatron.layout import MegatronLayout, States
from everybyte.engines.megatron.routing import may_be_uneven
from everybyte.engines.megatron.run import Run
from everybyte.engines.megatron.sizes import Split, padded
from everybyte.engines.megatron.stage import StageBill
from everybyte.engines.megatron.style import Style
from everybyte.engines.megatron.style_from_job import full_of, is_swift, style_of
from everybyte.job import InlineModel, Job, Train
from everybyte.job.extra import section
from everybyte.job.form import Optimizer
from everybyte.job.words import Sharding
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Batch
from everybyte.ledger.build import Line
from everybyte.models.count import parameter_count
from everybyte.rules.accounting.account import Account, Device, Rank
from everybyte.rules.accounting.conventions import CORE
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.communication.nccl import beside_allocator
from everybyte.rules.from_job.recipe import refuse_towers
from everybyte.rules.optimizers.plan import OptimizerPlan
from everybyte.rules.parallel.mesh import Mesh, mesh_of
from everybyte.rules.parallel.pipeline import outdone
from everybyte.rules.parallel.schedules import Plan, plan_of
from everybyte.rules.parallel.stages import Stage, kinds, stages_of
from everybyte.rules.step.recipe import Recipe

USUAL_LENGTH = 4096
"""--seq-length of the training example in Megatron-LM megatron/core/transformer/moe/README.md @022bcb5."""
SHARDINGS: dict[Sharding, bool] = {"none": False, "ddp": False, "distributed-optimizer": True, "zero1": True, "megatron-fsdp": True}
"""train.sharding -> whether the distributed optimizer divides states."""


def account(job: Job, network: Network, device: Device) -> Account:
    """The ranks of a job by pipeline stage. Raises BadInput or Unsupported with the key's path."""
    assert job.train is not None
    train, choices = job.train, ResolvedSettings()
    keys = section(train.extra, Keys)
    choices.note("train.framework", train.framework, "given")
    _refuse(train)
    refuse_towers(network, "Megatron-LM")
    distributed = _is_distributed(train, keys, choices)
    mesh = mesh_of(train, job.hardware, network, choices, sharding="distributed-optimizer" if distributed else "ddp", conventions=CORE)
    found = versions_of(train)
    style = style_of(train, keys, device.compute_capability, found, choices)
    split = Split(mesh.tp, mesh.sp, mesh.cp, mesh.ep, mesh.etp)
    plan = plan_of(train, mesh.pp, choices, CORE) if mesh.pp > 1 else None
    vocab = _vocab(job, network, mesh.tp, choices)
    recipe = _recipe(train, network, mesh, choices)
    site = _site(keys, style, network, device, found)
    run = Run(
        network,
        vocab,
        split,
        style,
        recipe,
        _layout(train, keys, network, mesh, recipe, distributed=distributed),
        full_of(train, choices),
        device.compute_capability,
        plan,
        found,
        workspace_lines(site),
        graph_workspaces(site),
        _deferred(keys, plan),
    )
    stages = (_only(network),) if plan is None else stages_of(train, network, plan)
    outside = beside_allocator(job, mesh, "core", device, experts=bool(network.experts), tied=network.tied)
    uneven = _unevenly_routed(run)
    if uneven is not None:
        choices.assume("routing is balanced: every expert gets the same number of tokens")
    return Account(tuple(_ranks(run, uneven, stages, mesh, outside)), choices, parameter_count(network))


def _unevenly_routed(run: Run) -> Run | None:
    """The run in which all tokens choose experts of one rank; None if that changes nothing."""
    if not may_be_uneven(run.network, run.split.inside, run.style):
        return None
    return replace(run, recipe=replace(run.recipe, batch=run.recipe.batch._replace(is_uneven=True)))


def _ranks(run: Run, uneven: Run | None, stages: tuple[Stage, ...], mesh: Mesh, outside: tuple[Line, ...]) -> Iterator[Rank]:
    covered = (False,) if run.plan is None else outdone(run.plan, kinds(run.network, stages))
    for stage, is_covered in zip(stages, covered, strict=True):
        bill = StageBill(run, stage)
        host = run.layout.host(bill.network, run.recipe) if run.layout.on_host else ()
        worst = None if uneven is None else StageBill(uneven, stage)
        yield Rank(bill, _label(stage, mesh), mesh.gpus // mesh.pp, stage.index, outside, host, uneven=worst, is_covered=is_covered)


def _refuse(train: Train) -> None:
    for key in ("adapter", "quantization", "freeze"):
        if getattr(train, key) is not None:
            raise Unsupported(f"train.{key}", f"is not supported for {train.framework} yet; supported: full training")
    if train.sharding not in (None, *SHARDINGS):
        raise Unsupported(
            "train.sharding", f"{train.sharding!r} is not supported for {train.framework} yet; supported: ddp, distributed-optimizer and megatron-fsdp"
        )
    if train.offload is not None and train.offload.params not in (None, "none"):
        raise Unsupported("train.offload.params", f"is not supported for {train.framework} yet; supported: offload.optimizer: cpu")
    if train.loss is not None and train.loss.kind not in (None, "standard", "vocab-parallel"):
        raise Unsupported(
            "train.loss.kind",
            f"{train.loss.kind!r} is not supported for {train.framework}; supported: vocab-parallel, fused by train.extra.cross-entropy-loss-fusion",
        )


def _on_host(train: Train, keys: Keys, *, answered: bool) -> bool:
    """Whether the optimizer runs in host memory. Raises Unsupported for a part of it, and under Megatron-FSDP."""
    asked = train.offload
    where = asked.optimizer if asked is not None else None
    if where in (None, "none") and not keys.optimizer_cpu_offload:
        return False
    fraction = asked.fraction if asked is not None and asked.fraction is not None else keys.optimizer_offload_fraction
    if where not in (None, "none", "cpu") or fraction != 1 or not answered:
        raise Unsupported("train.offload.optimizer", "supported: cpu with fraction 1, without Megatron-FSDP")
    return True


def _is_distributed(train: Train, keys: Keys, choices: ResolvedSettings) -> bool:
    usual: Sharding = "distributed-optimizer" if keys.use_distributed_optimizer or train.framework == "nemo" else "ddp"
    if keys.use_megatron_fsdp:
        usual = "megatron-fsdp"
    return SHARDINGS[choices.pick("train.sharding", train.sharding, usual, default_of(train.framework or ""))]


def _vocab(job: Job, network: Network, tp: int, choices: ResolvedSettings) -> int:
    """Rows of the embedding: as the shape says, or padded."""
    stated = isinstance(job.model, InlineModel) and isinstance(job.model.shape, dict) and job.model.shape.get("padded_vocab") is not None
    own = job.train is not None and is_swift(job.train)  # mcore_bridge config/parser.py: padded_vocab_size is the checkpoint's
    rows = network.vocab if (stated or own) and network.vocab % tp == 0 else padded(network.vocab, tp)
    if rows != network.vocab:
        choices.assume(f"the vocabulary of {network.vocab:,} is padded to {rows:,}, a multiple of 128·tp (make_vocab_size_divisible_by)")
    return rows


def _deferred(keys: Keys, plan: Plan | None) -> int:
    """Micro-batches for which a pipeline puts the head's weight gradient off; a limit of 0 means all."""
    if plan is None or not keys.defer_embedding_wgrad_compute:
        return 0
    limit = keys.wgrad_deferral_limit
    return min(limit or plan.microbatches, plan.microbatches)


def _only(network: Network) -> Stage:
    return Stage(0, (tuple(range(network.layers)),), 0, 0, network.mtp, 0 if network.mtp else -1)


def _label(stage: Stage, mesh: Mesh) -> str:
    if mesh.pp == 1:
        return "gpu 0" if mesh.gpus == 1 else "every rank"
    holds = [word for word, there in (("embedding", stage.has_embedding), ("head", stage.has_head)) if there]
    return f"pp{stage.index}" + (f" ({', '.join(holds)})" if holds else "")


# -- numbers -----------------------------------------------------------------------------------------------------------------
def _recipe(train: Train, network: Network, mesh: Mesh, choices: ResolvedSettings) -> Recipe:
    origin = default_of(train.framework or "")
    word = choices.pick("train.precision", train.precision, "bf16-master", origin)
    half = _unquantized(train, word, choices)
    micro_batch = choices.pick("train.micro_batch", train.micro_batch, 1, origin)
    usual = min(network.max_positions or USUAL_LENGTH, USUAL_LENGTH)
    length = choices.pick("train.seq_len", train.seq_len, usual, inferred("Megatron has no default; the length of its training examples"))
    local = length // mesh.sequence_parallel
    master = None if half == FP32 else FP32
    return Recipe(
        setup=Setup(weights=half, dropout=train.dropout),
        batch=Batch(micro_batch, local, local),
        optimizer=OptimizerPlan("adamw", "fused", None, master),
        gradient=_gradient(train, half),
        stream=half,
        gradients_live="always",
        gradients_between=True,
        batch_bytes_per_token=0,
        handles=0,
    )


def _unquantized(train: Train, word: str, choices: ResolvedSettings) -> DType:
    """Type of what is not in fp8. A job in fp8 that names no 16-bit type: bf16, but fp32 where it asks for unfused attention, as Megatron-LM runs without
    --bf16 and --fp16 (training/arguments.py params_dtype), for which fused kernels would not run (Transformer Engine's get_attention_backend)."""
    stated = train.dtypes.weights if train.dtypes is not None else None
    if word == "fp8" and stated in (None, "none", "fp8") and train.attention in ("unfused", "eager"):
        choices.assume("what is not in fp8 is in fp32, as without --bf16 or --fp16: attention is unfused; name the type with train.dtypes.weights")
        return FP32
    named = str(stated) if word == "fp8" and stated is not None else word
    return FP32 if named == "fp32" else FP16 if named.startswith("fp16") else BF16


def _gradient(train: Train, half: DType) -> DType:
    """Type of the main gradients: fp32 with bf16 weights (accumulate_allreduce_grads_in_fp32), unless they are reduced in bf16; fp16 with fp16."""
    given = train.dtypes.grads if train.dtypes is not None else None
    if given not in (None, "none"):
        return dtype(str(given), "train.dtypes.grads")
    if section(train.extra, Keys).grad_reduce_in_bf16 and half == BF16:
        return BF16
    return FP16 if half == FP16 else FP32


def _layout(train: Train, keys: Keys, network: Network, mesh: Mesh, recipe: Recipe, *, distributed: bool) -> MegatronLayout:
    asked = train.optimizer or Optimizer()
    gradient = recipe.gradient or FP32
    stated = (train.dtypes.optimizer if train.dtypes is not None else None) or asked.state_dtype
    moment = FP32 if stated in (None, "none") else dtype(str(stated), "train.dtypes.optimizer")
    muon = asked.name == "muon"
    if asked.name not in (None, "adam", "adamw", "muon"):
        raise Unsupported("train.optimizer.name", f"{asked.name!r} is not supported for Megatron-LM; supported: adamw and muon")
    master = 0 if recipe.setup.weights == FP32 else 4
    n = recipe.batch.b * recipe.batch.s // (mesh.tp if mesh.sp else 1)
    is_fsdp = train.sharding == "megatron-fsdp" or keys.use_megatron_fsdp
    on_host = _on_host(train, keys, answered=not is_fsdp)
    if is_fsdp:
        given = train.dtypes.grads if train.dtypes is not None else None
        return FsdpLayout(
            distributed=True,
            shards=mesh.shards,
            expert_shards=mesh.expert_shards,
            states_kept=States(main_bytes(keys), moment),
            gradient=gradient,
            widens=not keys.use_precision_aware_optimizer,
            hidden=recipe.stream.nbytes(n * network.hidden),
            strategy=strategy_of(keys),
            fp8_weights=train.precision == "fp8" and keys.fp8_param_gather,
            stated=gradient_type(keys, None if given in (None, "none") else gradient),
            keeps_ends=versions_of(train).core.has("keeps_ends"),
        )
    return MegatronLayout(
        distributed=distributed,
        shards=mesh.shards,
        expert_shards=mesh.expert_shards,
        states_kept=States(master, moment, muon),
        gradient=gradient,
        on_host=on_host,
        widens=gradient.bits < 32 and not _reads_gradients(train, keys, on_host=on_host),
        bucket=max(40_000_000, 1_000_000 * mesh.shards) if keys.overlap_grad_reduce else 0,
        fp8_copies=train.precision == "fp8" and not keys.fp8_param_gather,
        fp8_alone=train.precision == "fp8" and distributed and bool(keys.fp8_param_gather and keys.disable_parameter_transpose_cache),
        whole_tensors=muon and distributed and keys.no_use_layer_wise_param_layout,
        hidden=recipe.stream.nbytes(n * network.hidden),
    )


def _reads_gradients(train: Train, keys: Keys, *, on_host: bool) -> bool:
    """Whether the optimizer reads 16-bit main gradients as they are, without an fp32 copy: the precision-aware one does, but on the device with fp32 main
    weights only where no fp8 recipe but delayed scaling is named (optimizer/optimizer_config.py use_precision_aware_optimizer_no_fp8_or_ds_fp8).
    Megatron-Bridge names one in bf16 too: `tensorwise` is the default of its MixedPrecisionConfig, which is written into the optimizer's settings."""
    if not keys.use_precision_aware_optimizer:
        return False
    usual = "tensorwise" if train.framework == "nemo" else "delayed"
    recipe = usual if keys.fp8_recipe is msgspec.UNSET else keys.fp8_recipe
    has_wide_weights = keys.main_params_dtype in ("fp32", "torch.float32")
    return on_host or not has_wide_weights or recipe in (None, "none", "delayed")


def _site(keys: Keys, style: Style, network: Network, device: Device, found: Versions) -> Site:
    """What decides the workspaces. The router of a mixture runs in Transformer Engine whatever runs the layers (moe/moe_utils.py router_gating_linear)."""
    return Site(
        device.compute_capability,
        found,
        workspace_config(keys),
        style.te or bool(network.experts),
        grouped=style.te and bool(network.experts) and keys.moe_grouped_gemm,
        overlapped=style.te and keys.tp_comm_overlap,
        graphs=style.captured and style.attention == "unfused",
        streams=keys.overlap_moe_expert_parallel_comm,
    )
