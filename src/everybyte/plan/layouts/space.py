"""The legal layouts of a training job on a cluster, as jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from everybyte.catalog.speed_cards import NODE
from everybyte.job import Job
from everybyte.job.form import DTypes, Hardware, Mesh, Pipeline, Recompute, Train
from everybyte.plan.time.shape import NetworkShape
from everybyte.plan.time.training.setting import MEGATRON

MICRO_BATCHES = (1, 2, 4, 8, 16)
CONTEXT_PARALLEL = (1, 2, 4, 8, 16)
LEAST_TOKENS = 2048
"""Tokens of a sequence that context parallelism leaves to a rank; shorter ones lose more than they save."""
MOST_STAGES = 64
MOST_CHUNKS = 12
LEAST_EXPERTS = 8
"""Expert parallelism narrower than this is only tried where it holds all experts."""
BOTH_FSDP = ("fsdp1", "fsdp2")
SHARDED = {"torchtitan": ("fsdp2",), "accelerate": BOTH_FSDP, "transformers": BOTH_FSDP, "trl": BOTH_FSDP, "pytorch": BOTH_FSDP}
"""Ways to shard that a framework offers beside plain data parallelism, where it is not Megatron."""
ZERO = ("zero1", "zero2", "zero3")
OVERLAPS = {"overlap-grad-reduce": True, "overlap-param-gather": True}
"""What Megatron's own recipes turn on (Megatron-Bridge, performance recipes)."""


ENDS_COUNTED = {"account-for-embedding-in-pipeline-split": True, "account-for-loss-in-pipeline-split": True}
"""Megatron's flags for stages in which embedding and loss count as a layer each."""


class Layout(NamedTuple):
    """One way to spread a job. Widths are ranks; `chunks` are virtual stages of a rank."""

    tp: int
    pp: int
    cp: int
    ep: int
    dp: int
    micro_batch: int
    grad_accum: int
    chunks: int
    recompute: str
    sharding: str
    grads: str
    """Format of gradients; empty: the framework's own."""

    @property
    def mesh(self) -> tuple[int, int, int, int, str]:
        """Layouts that differ in the rest alone are variants of one mesh."""
        return self.tp, self.pp, self.cp, self.ep, self.sharding

    def said(self) -> str:
        """`tp 8 × pp 8 × dp 16, micro-batch 1 × 32, 4 chunks, selective`."""
        axes = (
            " × ".join(f"{name} {n}" for name, n in (("tp", self.tp), ("pp", self.pp), ("cp", self.cp), ("ep", self.ep), ("dp", self.dp)) if n > 1)
            or "one rank"
        )
        parts = [axes, f"micro-batch {self.micro_batch} × {self.grad_accum}"]
        parts += [f"{self.chunks} chunks"] if self.chunks > 1 else []
        parts += [f"{self.recompute} recompute"] if self.recompute != "none" else []
        parts += [self.sharding] if self.sharding not in ("none", "distributed-optimizer") else []
        parts += [f"{self.grads} gradients"] if self.grads else []
        return ", ".join(parts)


def layouts(job: Job, shape: NetworkShape, gpus: int, global_batch: int, fixed: Mapping[str, Any]) -> Iterator[Layout]:
    """Every legal layout that agrees with the fixed values (field of `Layout` -> value)."""
    train = job.train
    assert train is not None
    every = _megatron(shape, train, gpus, global_batch, _node(job)) if train.framework in MEGATRON else _trainer(train, gpus, global_batch)
    for layout in every:
        if all(getattr(layout, name) == value for name, value in fixed.items()):
            yield layout


def _node(job: Job) -> int:
    return (job.hardware.gpus_per_node if job.hardware else None) or NODE


def divisors(n: int) -> list[int]:
    """All divisors of n, the smallest first."""
    return [d for d in range(1, n + 1) if n % d == 0]


def _megatron(shape: NetworkShape, train: Train, gpus: int, global_batch: int, node: int) -> Iterator[Layout]:
    """Megatron's axes: tensor parallelism inside a node, pipeline stages of any cut, context and expert parallelism, virtual stages, recomputation."""
    attention = next((layer for layer, _ in shape.layers if layer.heads), None)
    heads = attention.heads if attention else 1
    kv_heads = max(1, round(attention.cached / (2 * attention.head_dim))) if attention and not attention.latent else heads
    experts = max((layer.expert_count for layer, _ in shape.layers), default=0)
    length = train.seq_len or 1
    for tp in divisors(min(node, gpus)):
        if gpus % tp or heads % tp or (kv_heads % tp and tp % kv_heads):
            continue
        for pp in divisors(gpus // tp):
            if pp > min(shape.count, MOST_STAGES) or (shape.count % pp and (shape.count + 2) // pp < 2):
                continue
            for cp in CONTEXT_PARALLEL:
                if gpus % (tp * pp * cp) or length % (2 * cp) or (cp > 1 and length // cp < LEAST_TOKENS):
                    continue
                dp = gpus // (tp * pp * cp)
                for ep in _expert_widths(experts, tp * cp * dp):
                    yield from _schedules(shape, dp, global_batch, Layout(tp, pp, cp, ep, dp, 1, 1, 1, "none", "distributed-optimizer", ""))


def _expert_widths(experts: int, ranks: int) -> list[int]:
    if not experts:
        return [1]
    return [ep for ep in divisors(experts) if ranks % ep == 0 and (ep >= LEAST_EXPERTS or ep in (1, experts))]


def _schedules(shape: NetworkShape, dp: int, global_batch: int, mesh: Layout) -> Iterator[Layout]:
    has_experts = shape.expert_parameters > 0
    for micro_batch in MICRO_BATCHES:
        if global_batch % (dp * micro_batch):
            continue
        accum = global_batch // (dp * micro_batch)
        for chunks in _chunks(shape.count, mesh.pp, accum):
            for recompute in ("none", "selective", "full") if not has_experts else ("none", "experts", "full"):
                for grads in ("", "bf16"):
                    yield mesh._replace(micro_batch=micro_batch, grad_accum=accum, chunks=chunks, recompute=recompute, grads=grads)


def _chunks(layers: int, pp: int, accum: int) -> list[int]:
    """Virtual stages: whole layers a chunk, embedding and head counted as a layer each where that divides; micro-batches fill the stages evenly."""
    if pp == 1 or accum % pp:
        return [1]
    even = [v for v in range(2, layers // pp + 1) if layers % (pp * v) == 0]
    counted = [v for v in range(2, (layers + 2) // pp + 1) if (layers + 2) % (pp * v) == 0]
    return [1, *sorted({*even, *counted})][:MOST_CHUNKS]


def _trainer(train: Train, gpus: int, global_batch: int) -> Iterator[Layout]:
    """Data parallelism alone, plain or sharded, as trainers of Hugging Face, DeepSpeed and torchtitan do it."""
    framework = train.framework or "pytorch"
    ways = ZERO if framework == "deepspeed" or train.sharding in ZERO else SHARDED.get(framework, ("fsdp2",))
    if gpus == 1:
        ways = ("none",)
    elif framework not in ("deepspeed", "torchtitan"):
        ways = ("ddp", *ways)
    for sharding in ways:
        for micro_batch in (*MICRO_BATCHES, 32, 64):
            if global_batch % (gpus * micro_batch) == 0:
                for recompute in ("none", "full"):
                    yield Layout(1, 1, 1, 1, gpus, micro_batch, global_batch // (gpus * micro_batch), 1, recompute, sharding, "")


def job_of(job: Job, layout: Layout, gpus: int, layers: int) -> Job:
    """The job with this layout."""
    train = job.train
    assert train is not None
    hardware = msgspec.structs.replace(job.hardware or Hardware(), gpus=gpus)
    if train.framework not in MEGATRON:
        mesh = None if layout.sharding in ("none", "ddp", *ZERO) else Mesh(dp_shard=layout.dp)
        changed = msgspec.structs.replace(
            train,
            mesh=mesh,
            sharding=layout.sharding,
            micro_batch=layout.micro_batch,
            grad_accum=layout.grad_accum,
            recompute=_recompute(layout),
        )
        return msgspec.structs.replace(job, hardware=hardware, train=changed)
    extra = {**(train.extra or {}), **OVERLAPS, **({"tp-comm-overlap": True} if layout.tp > 1 else {})}
    if layout.chunks > 1 and layers % (layout.pp * layout.chunks):
        extra |= ENDS_COUNTED
    changed = msgspec.structs.replace(
        train,
        mesh=Mesh(tp=layout.tp, sp=layout.tp > 1, pp=layout.pp, cp=layout.cp, ep=layout.ep, etp=1 if layout.ep > 1 else None),
        sharding="distributed-optimizer",
        micro_batch=layout.micro_batch,
        grad_accum=layout.grad_accum,
        recompute=_recompute(layout),
        pipeline=_pipeline(layout, layers),
        dtypes=DTypes(grads="bf16", reduce="bf16") if layout.grads == "bf16" else train.dtypes,
        extra=extra,
    )
    return msgspec.structs.replace(job, hardware=hardware, train=changed)


def _recompute(layout: Layout) -> Recompute:
    if layout.recompute == "full":
        return Recompute(policy="full", method="uniform", layers=1) if layout.sharding == "distributed-optimizer" else Recompute(policy="full")
    if layout.recompute == "experts":
        return Recompute(policy="selective", modules=("layernorm", "moe_act"))
    return Recompute(policy="selective", modules=("core_attn",)) if layout.recompute == "selective" else Recompute(policy="none")


def _pipeline(layout: Layout, layers: int) -> Pipeline | None:
    """Stages; where layers have no such divisor, embedding and head count as a layer each and the first and last stage are shorter."""
    if layout.pp == 1:
        return None
    if layout.chunks > 1:
        return Pipeline(schedule="interleaved", virtual=layout.chunks)
    if layers % layout.pp == 0:
        return Pipeline(schedule="1f1b")
    each, more = divmod(layers + 2, layout.pp)
    stages = [each + 1] * more + [each] * (layout.pp - more)
    stages[0] -= 1
    stages[-1] -= 1
    return Pipeline(schedule="1f1b", layers=tuple(stages))
