"""Accounts for a step of torchtitan's trainer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from everybyte.basics.dtypes import BF16, FP32
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.origin import default_of
from everybyte.catalog.releases import Release
from everybyte.engines.torchtitan.block import Group
from everybyte.engines.torchtitan.extra import Keys
from everybyte.engines.torchtitan.loss import Kind
from everybyte.engines.torchtitan.network import Form, rendition
from everybyte.engines.torchtitan.pipeline import Share, StageShards, counts, share
from everybyte.engines.torchtitan.release import release_of, stores_attention
from everybyte.job import Hardware, Job, Train
from everybyte.job.extra import section
from everybyte.job.words import Sharding
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.rules.accounting.account import Account, Device, Rank
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.communication.nccl import beside_allocator
from everybyte.rules.from_job.recipe import Defaults, batch_of, optimizer_of, refuse_offload, refuse_towers
from everybyte.rules.parallel.mesh import NODE, Mesh, mesh_of
from everybyte.rules.parallel.pipeline import covered
from everybyte.rules.parallel.schedules import plan_of
from everybyte.rules.parallel.stages import kinds, stages_of
from everybyte.rules.sharding.fsdp_units import Units
from everybyte.rules.step.layout import WHOLE
from everybyte.rules.step.recipe import Recipe, RecomputePlan
from everybyte.rules.step.training import Training

EAGER = Kernels(attention="flash")
CHUNKS = 8
"""Parts of a chunked loss."""
PRECISIONS = ("bf16-mixed", "fp8", "bf16")
"""fp8 linear layers keep their inputs in bf16 for backward, as others do (torchao float8_linear.py, mx_linear.py); bf16: training.dtype=bfloat16."""
COMPILED = Kernels(attention="flash", norm="fused", mlp="fused", rope="fused")


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of a run. Raises BadInput or Unsupported with the key's path."""
    assert job.train is not None
    train, choices = job.train, ResolvedSettings()
    _check(train)
    refuse_towers(network, "torchtitan")
    release = release_of(train.version)
    choices.note("train.framework", "torchtitan", "given")
    choices.note("train.version", release.title, "given" if train.version else default_of("everybyte, the latest it knows"))
    mesh = mesh_of(train, job.hardware, network, choices, sharding="fsdp2")
    form = _form(train, mesh, release, device, choices)
    recipe = _recipe(train, network, mesh, form, choices)
    layout = _layout(train, network, mesh, release, choices)
    is_spread = network.experts > 0 and mesh.ep > 1
    if is_spread:
        choices.assume("routing is balanced: every expert gets the same number of tokens")
    rendered, found = rendition(network, form), []
    outside = beside_allocator(job, mesh, "torch", device, experts=network.experts > 0) if mesh.gpus > 1 else ()
    for part, is_covered in _shares(train, rendered, mesh, release, choices):
        own = replace(layout, shared=part.shared) if part.shared else layout
        bill = Training(part.network, recipe, device.compute_capability, part.buffers(recipe.batch), own, part.waiting)
        uneven = bill.unevenly_routed if is_spread else None
        found.append(Rank(bill, part.label, mesh.gpus // mesh.pp, part.stage, outside, uneven=uneven, is_covered=is_covered))
    total = WHOLE.trained(network, recipe.setup, None, None).numel
    return Account(tuple(found), choices, total, expandable=_expandable(job.hardware, mesh, choices))


def _check(train: Train) -> None:
    """Refuses what is not answered, by its key."""
    refuse_offload(train)
    for key in ("adapter", "quantization", "freeze", "buckets", "kernels"):
        if getattr(train, key) is not None:
            raise Unsupported(f"train.{key}", "is not supported for torchtitan; supported: full training with its own modules")
    if train.precision not in (None, *PRECISIONS):
        raise Unsupported("train.precision", f"{train.precision!r} is not supported for torchtitan; supported: {', '.join(PRECISIONS)}")
    if train.attention not in (None, "sdpa", "flex", "flash2", "flash3"):
        raise Unsupported("train.attention", f"{train.attention!r} is not supported for torchtitan; supported: sdpa and flex")
    if section(train.extra, Keys).memory_budget is not None:
        raise Unsupported(
            "train.extra.activation_checkpoint.memory_budget", "what the compiler keeps under a budget is not supported; supported: selective and full"
        )


def _shares(train: Train, network: Network, mesh: Mesh, release: Release, choices: ResolvedSettings) -> Iterator[tuple[Share, bool]]:
    """The kinds of ranks: one for each pipeline stage; and whether another one like it has as much in flight."""
    if mesh.pp == 1:
        yield Share(network, (), "every rank" if mesh.gpus > 1 else "gpu 0", 0), False
        return
    plan = plan_of(train, mesh.pp, choices)
    stages = stages_of(train, network, plan, counts(network.layers, plan, release))
    shares = [share(network, stage, plan) for stage in stages]
    in_flight = tuple((part.flight,) for part in shares if part.flight is not None)
    yield from zip(shares, covered(kinds(network, stages), in_flight), strict=True)


def _layout(train: Train, network: Network, mesh: Mesh, release: Release, choices: ResolvedSettings) -> StageShards:
    """FSDP2 as parallelize.py applies it. Without a policy stages of a pipeline keep their weights gathered, and their whole gradients until the
    last micro-batch."""
    usual: Sharding = "fsdp2-no-reshard" if mesh.pp > 1 else "fsdp2"
    sharding = choices.pick("train.sharding", train.sharding, usual, default_of(release.title))
    if sharding not in ("fsdp2", "fsdp2-no-reshard", "hsdp"):
        raise Unsupported("train.sharding", f"{sharding!r} is not supported for torchtitan; supported: fsdp2, fsdp2-no-reshard and hsdp")
    apart = release.has("separate_ends") and not network.tied
    return StageShards(
        degree=mesh.shards,
        stored=BF16 if train.precision == "bf16" else FP32,
        reduce=FP32,
        units=Units(("embed", "head") if apart else ()),
        reshards=sharding != "fsdp2-no-reshard",
        kept_units=("head",) if apart else (),
        keeps_last=not release.has("separate_ends"),
        unsharded=mesh.pp > 1,
        expert_degree=mesh.expert_shards if mesh.ep > 1 else 0,
    )


def _expandable(hardware: Hardware | None, mesh: Mesh, choices: ResolvedSettings) -> bool:
    """run_train.sh sets PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; multinode_trainer.slurm and torchrun by itself do not."""
    one_node = mesh.gpus <= ((hardware.gpus_per_node if hardware else None) or NODE)
    choices.assume(f"started by {'run_train.sh, with' if one_node else 'multinode_trainer.slurm, without'} expandable segments (env.alloc_conf says otherwise)")
    return one_node


def _form(train: Train, mesh: Mesh, release: Release, device: Device, choices: ResolvedSettings) -> Form:
    compiled = choices.pick("train.compile", train.compile, False, default_of(release.title))
    group = Group(mesh.tp, train.mesh is None or train.mesh.sp is not False)
    chunks = (train.loss.chunks if train.loss else None) or CHUNKS
    stores = stores_attention(release, device.compute_capability)
    return Form(release, group, compiled, _loss(train, mesh, release, compiled, choices), chunks, _own_products(train), stores, mesh.ep)


def _own_products(train: Train) -> int:
    """Leading blocks whose linear layers are NVFP4's: `nvfp4 (layers 0-26) bf16 tail`."""
    text = section(train.extra, Keys).quantization
    found = re.search(r"nvfp4 \(layers 0-(\d+)\)", text)
    if text and found is None:
        raise BadInput("train.extra.quantization", f"{text!r} is not understood; 'nvfp4 (layers 0-26)' names the blocks that are NVFP4")
    return int(found[1]) + 1 if found else 0


def _loss(train: Train, mesh: Mesh, release: Release, compiled: bool, choices: ResolvedSettings) -> Kind:
    usual = "chunked" if release.has("chunks_head") else ("vocab-parallel" if mesh.tp > 1 else ("compiled" if compiled else "standard"))
    kind = choices.pick("train.loss.kind", train.loss.kind if train.loss else None, usual, default_of(release.title))
    if kind == "chunked":
        return "chunked-head" if release.has("chunks_head") else "chunked-logits"
    if mesh.tp > 1:
        return "parallel"
    if kind == "compiled" and not release.has("compiles_loss"):
        return "eager"
    return "compiled" if kind == "compiled" else "eager"


def _recipe(train: Train, network: Network, mesh: Mesh, form: Form, choices: ResolvedSettings) -> Recipe:
    release = form.release
    defaults = Defaults(release.title, impl="fused" if release.has("fused_optimizer") else "foreach", batch_bytes_per_token=16)
    batch = batch_of(train, network, defaults, choices)
    ways = mesh.sequence_parallel
    kernels = replace(COMPILED if form.compiled else EAGER, repeat_kv=release.has("repeats_kv"))
    accumulates = mesh.pp > 1 or choices.pick("train.grad_accum", train.grad_accum, 1, default_of(release.title)) > 1
    setup = Setup(weights=BF16, kernels=kernels, single=batch.b == 1)
    return Recipe(
        setup=setup,
        batch=batch._replace(s=batch.s // ways, t=batch.t // ways),
        optimizer=optimizer_of(train, defaults, choices, None, None),
        recompute=_recompute(train, choices, release),
        stream=BF16,
        batch_bytes_per_token=16,
        gradients_live="always" if accumulates else "backward",
    )


def _every(train: Train) -> int | None:
    """`selective_ac_option`: `op`, or every how many blocks."""
    option = section(train.extra, Keys).selective
    if option == "op":
        return None
    if not str(option).isdigit() or not 1 <= int(option) <= 10_000:
        raise BadInput("train.extra.activation_checkpoint.selective_ac_option", f"must be 'op' or a whole number of blocks, not {option!r}")
    return int(option)


def _recompute(train: Train, choices: ResolvedSettings, release: Release) -> RecomputePlan:
    given = train.recompute
    policy = choices.pick("train.recompute.policy", given.policy if given else None, "selective", default_of(release.title))
    every = (given.every if given else None) or _every(train)
    if policy == "none":
        return RecomputePlan()
    if policy == "full" or every:
        return RecomputePlan("non-reentrant", every or 1)
    return RecomputePlan("selective")
