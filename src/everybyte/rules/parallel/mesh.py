"""The mesh: how the GPUs of a training job are divided among the parallel axes, and which divisions are impossible."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import gcd, prod

from everybyte.basics.errors import BadInput
from everybyte.basics.origin import USER, inferred
from everybyte.basics.record import Record
from everybyte.job import Hardware, Train
from everybyte.job.check import mesh_fault
from everybyte.job.form import Mesh as GivenMesh
from everybyte.job.form import Pipeline
from everybyte.job.words import Sharding
from everybyte.layers.network import Network
from everybyte.models.widths import Widths, widths_of
from everybyte.rules.accounting.conventions import PLAIN, Conventions
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.parallel.schedules import planned

PATH = "train.mesh"
GIVEN = ("tp", "sp", "cp", "pp", "ep", "etp", "ulysses", "dp_replicate", "dp_shard")
REPLICATED: tuple[Sharding, ...] = ("none", "ddp")
"""Every GPU holds the whole; all other kinds shard over the data-parallel axis."""
NODE = 8
"""GPUs of a node where the job does not say."""


Derived = tuple[str, int, str]
"""Key, value and reason of a size that the job leaves open."""


class Mesh(Record, frozen=True):
    """Sizes of the axes. gpus = tp·cp·ulysses·pp·dp_replicate·dp_shard; experts divide the same GPUs as etp·ep·pp·expert_dp."""

    gpus: int = 1
    tp: int = 1
    sp: bool = False
    """Sequence parallel inside the tensor-parallel group; never set with tp 1."""
    cp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int = 1
    ulysses: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1

    @property
    def dp(self) -> int:
        """Ranks that get different samples."""
        return self.dp_replicate * self.dp_shard

    @property
    def model_parallel(self) -> int:
        """Ranks over which the weights of one copy of a dense model lie, before data-parallel sharding."""
        return self.tp * self.pp

    @property
    def sequence_parallel(self) -> int:
        """Ranks that share the tokens of one sequence and hold the same weights."""
        return self.cp * self.ulysses

    @property
    def shards(self) -> int:
        """Ranks that share the states of dense parameters. Ranks of one sequence hold the same weights, so the states lie over them as well
        (Megatron-LM's dp_cp group, torchtitan's fsdp axis = dp_shard·cp, DeepSpeed's seq_data_parallel_group)."""
        return self.dp_shard * self.sequence_parallel

    @property
    def expert_dp(self) -> int:
        """Ranks that hold the same experts."""
        return self.gpus // (self.etp * self.ep * self.pp)

    @property
    def expert_shards(self) -> int:
        """Ranks that share the states of one expert: its holders inside a replica."""
        return max(self.expert_dp // self.dp_replicate, 1)


def mesh_of(
    train: Train, hardware: Hardware | None, network: Network, choices: ResolvedSettings, *, sharding: Sharding | None = None, conventions: Conventions = PLAIN
) -> Mesh:
    """The mesh of a job; what is left of the GPUs goes to data parallel. `sharding` is the engine's default where the job names none.

    Derived sizes are recorded in `choices`. Raises BadInput with the rule that an impossible combination breaks.
    """
    asked, widths = train.mesh or GivenMesh(), widths_of(network)
    gpus = (hardware.gpus if hardware else None) or _product(asked)
    per_node = (hardware.gpus_per_node if hardware else None) or min(gpus, NODE)
    mesh, reasons = _filled(asked, gpus, per_node, train.sharding or sharding, bool(widths.experts), divides_experts=conventions.divides_experts)
    for name in GIVEN:
        if getattr(asked, name) is not None:
            choices.note(f"{PATH}.{name}", getattr(asked, name), USER)
    for key, value, reason in reasons:
        choices.note(key, value, inferred(reason))
    _refuse(mesh, network.layers, widths, train.seq_len, train.pipeline)
    if mesh.pp > 1:
        planned(train, mesh.pp, conventions)
    elif train.pipeline is not None:
        choices.warn("train.pipeline has no effect without train.mesh.pp > 1")
    if asked.sp and mesh.tp == 1:
        choices.warn("train.mesh.sp has no effect without train.mesh.tp > 1")
    return mesh


def _product(asked: GivenMesh) -> int:
    return prod(getattr(asked, name) or 1 for name in ("tp", "cp", "pp", "ulysses", "dp_replicate", "dp_shard"))


@lru_cache(maxsize=4096)
def _filled(
    asked: GivenMesh, gpus: int, per_node: int, sharding: Sharding | None, has_experts: bool, *, divides_experts: bool
) -> tuple[Mesh, tuple[tuple[str, int, str], ...]]:
    """The mesh, and (key, value, reason) of each size that the job leaves open."""
    if (fault := mesh_fault(asked, gpus)) is not None:
        raise fault
    tp, cp, pp, ulysses = asked.tp or 1, asked.cp or 1, asked.pp or 1, asked.ulysses or 1
    left = gpus // (tp * cp * pp * ulysses)
    replicate, shard, why = _data_parallel(asked, left, max(per_node // (tp * cp * ulysses), 1), sharding)
    if shard > 1 and sharding in ("none", "ddp"):
        raise BadInput(f"{PATH}.dp_shard", f"is {shard}, but train.sharding is {sharding}, which shards nothing: say dp_replicate, or name a sharding")
    ep = asked.ep or 1
    etp, etp_why = _expert_tensor(asked, tp, ep, divides_experts) if has_experts else (asked.etp or 1, "")
    mesh = Mesh(gpus, tp, bool(asked.sp) and tp > 1, cp, pp, ep, etp, ulysses, replicate, shard)
    reasons = [] if asked.dp_replicate is not None else [(f"{PATH}.dp_replicate", replicate, why)]
    reasons += [] if asked.dp_shard is not None else [(f"{PATH}.dp_shard", shard, why)]
    reasons += [(f"{PATH}.etp", etp, etp_why)] if has_experts and asked.etp is None and tp > 1 else []
    return mesh, tuple(reasons) if gpus > 1 else ()


def _data_parallel(asked: GivenMesh, left: int, node: int, sharding: Sharding | None) -> tuple[int, int, str]:
    """(dp_replicate, dp_shard, reason); `node`: data-parallel ranks that a node has room for."""
    replicate, shard = asked.dp_replicate, asked.dp_shard
    rest = f"what the other axes leave of the GPUs, {left}"
    if replicate is not None or shard is not None:
        replicate = replicate or left // (shard or 1)
        return replicate, shard or left // replicate, rest
    if sharding == "hsdp":
        shard = gcd(left, node)
        return left // shard, shard, "hsdp shards inside a node and replicates between nodes"
    if sharding is None or sharding in REPLICATED:
        return left, 1, f"{rest}; nothing is sharded over them"
    return 1, left, f"{rest}, over which {sharding} shards"


def _expert_tensor(asked: GivenMesh, tp: int, ep: int, divides: bool) -> tuple[int, str]:
    """(etp, reason) of a mixture of experts."""
    if asked.etp is not None:
        return asked.etp, ""
    if divides:
        return tp, "Megatron-LM divides experts as other layers (expert_tensor_parallel_size = tensor_model_parallel_size)"
    return (tp, "experts are divided as other layers") if ep == 1 else (1, "expert parallel ranks hold whole experts")


@lru_cache(maxsize=4096)
def _refuse(mesh: Mesh, layers: int, widths: Widths, seq_len: int | None, pipeline: Pipeline | None) -> None:
    """Raises BadInput for the first rule that the mesh breaks."""
    for fault in (*_head_faults(mesh, widths), *_length_faults(mesh, seq_len), *_expert_faults(mesh, widths), *_stage_faults(mesh, layers, pipeline)):
        raise fault


def _head_faults(mesh: Mesh, widths: Widths) -> Iterator[BadInput]:
    tp, over = mesh.tp, mesh.tp * mesh.ulysses
    for heads, kv_heads in widths.heads:
        if heads % tp:
            yield BadInput(f"{PATH}.tp", f"{tp} does not divide the {heads} attention heads")
        if heads % over:
            yield BadInput(f"{PATH}.ulysses", f"tp {tp} × ulysses {mesh.ulysses} = {over} does not divide the {heads} attention heads")
        if kv_heads % over and over % kv_heads:
            axis = "tp" if kv_heads % tp and tp % kv_heads else "ulysses"
            yield BadInput(f"{PATH}.{axis}", f"the {kv_heads} KV heads are neither divided nor replicated evenly over {over} ranks")
    for width in widths.ffn:
        if width % tp:
            yield BadInput(f"{PATH}.tp", f"{tp} does not divide the feed-forward width {width:,}")


def _length_faults(mesh: Mesh, seq_len: int | None) -> Iterator[BadInput]:
    if seq_len is None:
        return
    if seq_len % mesh.cp:
        yield BadInput(f"{PATH}.cp", f"{mesh.cp} does not divide train.seq_len = {seq_len:,}")
    if mesh.sp and seq_len // mesh.cp % mesh.tp:
        tokens = f"train.seq_len = {seq_len:,}" if mesh.cp == 1 else f"train.seq_len / cp = {seq_len // mesh.cp:,}"
        yield BadInput(f"{PATH}.sp", f"sequence parallel cuts every sequence into tp parts, and {mesh.tp} does not divide {tokens}")


def _expert_faults(mesh: Mesh, widths: Widths) -> Iterator[BadInput]:
    for axis, size in (("ep", mesh.ep), ("etp", mesh.etp)):
        if size > 1 and not widths.experts:
            yield BadInput(f"{PATH}.{axis}", f"{size}: the model has no experts; leave it out")
    if not widths.experts:
        return
    if widths.experts % mesh.ep:
        yield BadInput(f"{PATH}.ep", f"{mesh.ep} does not divide the {widths.experts} experts")
    for width in widths.expert_ffn:
        if width % mesh.etp:
            yield BadInput(f"{PATH}.etp", f"{mesh.etp} does not divide the experts' width {width:,}")
    ranks = mesh.gpus // mesh.pp
    if ranks % (mesh.ep * mesh.etp):
        yield BadInput(f"{PATH}.ep", f"ep {mesh.ep} × etp {mesh.etp} = {mesh.ep * mesh.etp} does not divide the {ranks} ranks of a pipeline stage (tp·cp·dp)")


def _stage_faults(mesh: Mesh, layers: int, pipeline: Pipeline | None) -> Iterator[BadInput]:
    if mesh.pp > layers and (pipeline is None or pipeline.layers is None):
        yield BadInput(f"{PATH}.pp", f"{mesh.pp} stages cannot share {layers} layers")
    if mesh.pp == 1 and pipeline is not None and (pipeline.virtual or 1) > 1:
        yield BadInput("train.pipeline.virtual", f"{pipeline.virtual} chunks per rank need train.mesh.pp > 1")
