"""The traffic of data parallelism in a step: gathered weights, scattered gradients; and the update of the weights. Seconds."""

from __future__ import annotations

from everybyte.basics.record import Record
from everybyte.catalog.speed_cards import SpeedCard
from everybyte.plan.time.links import ring
from everybyte.plan.time.shape import NetworkShape
from everybyte.plan.time.training.layer import STREAMS
from everybyte.plan.time.training.setting import NO_REGATHER, SHARDED_UPDATE, TrainSetting

NCCL_PROCESSORS = 20
"""Multiprocessors that a running collective takes from compute (NCCL's channels on NVLink and network)."""
BESIDE = 0.95
"""Share of compute beside which traffic can run."""
FORWARD, BACKWARD = 0.33, 0.66
EXPOSED = 0.1
"""Share of overlapped traffic that stands alone: the first and the last bucket."""
ADAPTER_SHARE, ADAPTER_OWNED = 0.005, 0.01
"""An adapter's weights against those of the base."""
UPDATE_BYTES = 30
"""fp32 weight, two moments and gradient read; weight, moments and the 16-bit weight written."""
UPDATE_LOSS = {True: 1.15, False: 1.3}
"""Bytes of the update with Megatron's or torchtitan's fused kernel; with foreach kernels of PyTorch."""
UPDATE_START = {True: 2e-3, False: 1.5e-3}
"""Launch of the update of an adapter's many small weights, of others."""
GRADIENT_PASSES = 8
"""Bytes an fp32 gradient: zeroed, and read for its norm."""
HOST_UPDATE = 0.35e-9 * 8
"""Seconds a weight that an update on the CPU takes (DeepSpeed CPUAdam, its own table: 1 s for 350M weights on 8 cores)."""
HOST_BYTES = 6
"""Gradient down and weight up."""
FUSED_UPDATE = ("megatron", "nemo", "torchtitan")


class Owned(Record, frozen=True):
    """Weights of a rank before data parallelism splits them: of the dense parts, and of routed experts."""

    dense: float
    experts: float


def owned(shape: NetworkShape, s: TrainSetting) -> Owned:
    """What tensor, pipeline and expert parallelism leave to a rank."""
    part = s.layers / shape.count
    tables = shape.vocab * shape.hidden * (1 if shape.tied or s.pp > 1 else 2)
    return Owned((shape.dense_parameters * part / s.pp + tables) / s.tp, shape.expert_parameters * part / (s.pp * s.ep * s.etp))


def data_parallel(weights: Owned, s: TrainSetting, card: SpeedCard, micro_batch: float, units: float) -> float:
    """What of the traffic a step waits for; `micro_batch` is the compute of one, `units` the layers that are gathered one by one."""
    if s.is_fsdp:
        return _gathered(weights, s, card, micro_batch, max(1.0, units))
    return _reduced(weights, s, card, micro_batch) if s.dp * s.cp > 1 else 0.0


def _gathered(weights: Owned, s: TrainSetting, card: SpeedCard, micro_batch: float, units: float) -> float:
    """FSDP and ZeRO-3: weights are gathered in forward and again in backward, gradients scattered, layer by layer and beside compute."""
    if s.shard <= 1:
        return 0.0
    near = max(1, min(s.shard, s.domain // max(1, s.tp)))
    gather = ring(card, s.gather_bytes * weights.dense / units, s.shard, near) * units
    scatter = 0.0 if s.lora else ring(card, s.gradient_bytes * weights.dense / units, s.shard, near) * units
    if weights.experts:
        ranks = max(1, s.shard // s.ep)
        close = max(1, min(ranks, s.domain // max(1, s.ep * s.tp)))
        gather += ring(card, s.gather_bytes * weights.experts / units, ranks, close) * units
        scatter += 0.0 if s.lora else ring(card, s.gradient_bytes * weights.experts / units, ranks, close) * units
    if s.replicas > 1 and not s.lora:
        scatter += 2 * ring(card, s.gradient_bytes * weights.dense / s.shard / units, s.replicas, 1) * units
    once = s.framework == "torchtitan" and s.pp > 1  # a pipeline gathers a stage once a step
    traffic = gather * (1 if once or s.sharding in NO_REGATHER else 2) + scatter
    over = max(0.0, traffic - BESIDE * micro_batch)
    slowed = min(traffic, micro_batch) * NCCL_PROCESSORS / card.multiprocessors
    ends = 2 * (gather + scatter) / units
    return over + slowed + ends if once else s.grad_accum * (over + slowed + 0.5 * ends)


def _reduced(weights: Owned, s: TrainSetting, card: SpeedCard, micro_batch: float) -> float:
    """Gradients are reduced in the last backward; a sharded update gathers the weights in the first forward."""
    ranks = s.dp * s.cp
    near = max(1, min(ranks, s.domain // max(1, s.tp))) if s.tp <= s.domain else 1
    dense = weights.dense * (ADAPTER_SHARE if s.lora else 1.0)
    is_sharded = s.sharding in SHARDED_UPDATE
    gather = ring(card, s.gather_bytes * dense, ranks, near) if is_sharded else 0.0
    scatter = ring(card, s.gradient_bytes * dense, ranks, near) * (1 if is_sharded else 2)
    if weights.experts and not s.lora:
        others = max(1, ranks * s.tp // (s.ep * s.etp))
        close = max(1, min(others, s.domain // max(1, s.ep * s.etp)))
        gather += ring(card, s.gather_bytes * weights.experts, others, close) if is_sharded else 0.0
        scatter += ring(card, s.gradient_bytes * weights.experts, others, close)
    return _beside(scatter, BACKWARD * micro_batch, card, overlaps=s.overlap_gradients) + _beside(
        gather, FORWARD * micro_batch, card, overlaps=s.overlap_parameters
    )


def _beside(traffic: float, compute: float, card: SpeedCard, *, overlaps: bool) -> float:
    if not overlaps:
        return traffic
    return max(EXPOSED * traffic, traffic - 0.9 * compute) + min(traffic, compute) * NCCL_PROCESSORS / card.multiprocessors


def update(weights: Owned, s: TrainSetting, card: SpeedCard) -> float:
    """The optimizer's step: moments and weights are read and written once, gradients zeroed and measured."""
    mine = _updated(weights, s)
    stream = card.stream * STREAMS
    seconds = mine * UPDATE_BYTES * UPDATE_LOSS[s.framework in FUSED_UPDATE] / stream + UPDATE_START[s.lora]
    if not s.is_fsdp:
        trained = weights.dense * (ADAPTER_SHARE if s.lora else 1.0) + (0.0 if s.lora else weights.experts)
        seconds += trained * GRADIENT_PASSES / stream
    return seconds


def _updated(weights: Owned, s: TrainSetting) -> float:
    """Weights that a rank updates itself."""
    if s.lora:
        return ADAPTER_OWNED * weights.dense
    if s.is_fsdp:
        return weights.dense / s.shard + weights.experts / max(1, s.shard // s.ep)
    if s.sharding in SHARDED_UPDATE:
        return weights.dense / (s.dp * s.cp) + weights.experts / max(1, s.dp * s.cp * s.tp // (s.ep * s.etp))
    return weights.dense + weights.experts


def offloaded(weights: Owned, s: TrainSetting, card: SpeedCard) -> float:
    """States on the host: gradients go down, the CPU updates, weights come up; weights on the host come up for each pass."""
    seconds = 0.0
    if s.offload_optimizer:
        seconds += _updated(weights, s) * (HOST_BYTES / card.host_link + HOST_UPDATE)
    if s.offload_params:
        seconds += s.grad_accum * 2 * 2 * weights.dense / max(1, s.dp * s.cp) / card.host_link
    return seconds
