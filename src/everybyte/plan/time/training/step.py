"""A whole training step: layers, head, host, pipeline, data parallelism, update; the terms add up to its length."""

from __future__ import annotations

import math

from everybyte.catalog.speed_cards import SpeedCard
from everybyte.ledger.time import Term, TimeLedger
from everybyte.plan.time.kernels import product
from everybyte.plan.time.links import pair_rate
from everybyte.plan.time.shape import NetworkShape
from everybyte.plan.time.training.layer import BACKWARD, STREAMS, LayerTime, layer_time, outer_tokens
from everybyte.plan.time.training.setting import TrainSetting
from everybyte.plan.time.training.shards import data_parallel, offloaded, owned, update

HOST = {"eager": 1.6e-3, "megatron": 2.5e-3, "compiled": 0.8e-3}
"""Host time to launch forward and backward of a layer (rows with tiny work a layer, where nothing else counts)."""
DETERMINISTIC = 4.5e-3
"""The same for Megatron in deterministic mode, which waits between kernels."""
HOST_ADAPTER, HOST_PACKED, HOST_FSDP, HOST_AGAIN = 1.9, 1.3, 0.25e-3, 0.33
"""More launches for adapters and packed weights, hooks of FSDP, and a second forward."""
HOST_EXPERTS, HOST_EXPERTS_GRAPHS = 4.5e-3, 1.0e-3
"""A layer of experts whose counts of tokens the host reads back; one with graphs and counts on the device."""
GRAPHS_SINCE = 25.11
"""Release of recipes for NVL72 machines with CUDA graphs around experts."""
LOSS_BYTES = {True: 12, False: 14}
"""Bytes a logit that the loss moves forward and backward, fused into the vocabulary-parallel kernel or not."""
EMBEDDING_BYTES = 6
HEAD_SHIFTED = 0.75
"""Share of the head that a pipeline cannot give away by uneven stages."""
MESSAGE = 15e-6
"""A message between stages beside its bytes."""
MESSAGES_SEEN, MESSAGES_SEEN_VIRTUAL = 0.3, 0.15
"""Share of the messages that a 1F1B schedule waits for; an interleaved one, for each chunk."""
SPLIT_BACKWARD, SPLIT_BUBBLE = ("zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v"), 0.35
"""Schedules that fill the bubble with weight gradients, and what is left of it."""


def training_step(shape: NetworkShape, s: TrainSetting, card: SpeedCard, times: LayerTimes | None = None) -> TimeLedger:
    """The terms of one step of the slowest rank; `times` are those of the layers where they are known already."""
    times = times or layer_times(shape, s, card)
    layers = float(s.layers)
    compute = sum(count * time.seconds for time, count in times)
    head = _head(shape, s, card) * (2 if s.mtp else 1) + (times[-1][0].seconds if s.mtp else 0.0)
    waits = max(0.0, layers * _host(shape, s, card) - compute)
    mean = (compute + waits + head) / s.pp
    slow = _slowest(s, layers, compute + waits, head, mean)
    message = _message(shape, s, card) if s.pp > 1 else 0.0
    weights = owned(shape, s)
    passes = s.grad_accum / s.pp
    terms = (
        *_of_layers(times, passes),
        Term("head and loss", passes * head, "micro-batches × (2·3·n·h·V / rate + loss bytes / bandwidth)", "products by shape"),
        Term("host", passes * waits, "max(0, layers × launch time - compute)", "launch time of a layer by framework"),
        Term("uneven stages", s.grad_accum * (slow - mean), "micro-batches × (slowest stage - mean stage)", "1F1B runs at the slowest stage's pace"),
        Term("pipeline bubble", _bubble(s, mean, message), "(p - 1) / v × (stage + 2 messages)", "Narayanan et al. 2021, section 2.2"),
        Term("pipeline messages", _messages(s, message), "2 messages a micro-batch, mostly hidden", "Narayanan et al. 2021, section 2.2"),
        Term("data parallelism", data_parallel(weights, s, card, slow, layers), "ring time not hidden behind compute", "NCCL's rings"),
        Term("optimizer", update(weights, s, card), "owned weights × 30 B / bandwidth", "AdamW reads and writes weights and moments once"),
        Term("offload", offloaded(weights, s, card), "owned weights × 6 B / host link + CPU update", "DeepSpeed ZeRO-Offload"),
    )
    return TimeLedger(tuple(term for term in terms if term.seconds > 0))


LayerTimes = tuple[tuple[LayerTime, float], ...]
"""Time of each kind of block, and how many there are."""


def layer_times(shape: NetworkShape, s: TrainSetting, card: SpeedCard) -> LayerTimes:
    """The time of every kind of block."""
    return tuple((layer_time(layer, s, card), count * s.layers / shape.count) for layer, count in shape.layers)


PARTS = (
    ("products", "matrix products", "FLOPs by shape / (peak × share of the card)", "tables of matrix products by shape and card"),
    ("attention", "attention", "4·b·a·d·s²/2 forward, 2.5 × that backward / kernel's rate", "FlashAttention-2 and -3 papers"),
    ("elementwise", "elementwise", "bytes of norms, residuals, activations, casts / bandwidth", "kernels between the products"),
    ("tensor_parallel", "tensor parallelism", "4 collectives of n·h a direction, less what is hidden", "Korthikanti et al. 2022, section 4"),
    ("context_parallel", "context parallelism", "ring of keys and values, less attention", "ring attention; Transformer Engine"),
    ("experts", "expert parallelism", "dispatch and combine of n·k·h, forward and backward", "DeepSeek-V3 report, section 3.2"),
    ("unpacking", "unpacking of weights", "packed weights read, 16-bit weights written", "bitsandbytes"),
    ("again", "recomputation", "what is computed a second time", "activation checkpointing"),
)
"""Field of a layer's time, name, formula and source of its term."""


def _of_layers(times: LayerTimes, passes: float) -> tuple[Term, ...]:
    return tuple(Term(name, passes * sum(count * getattr(time, field) for time, count in times), formula, source) for field, name, formula, source in PARTS)


def _host(shape: NetworkShape, s: TrainSetting, card: SpeedCard) -> float:
    """The least a layer takes, because the host must launch it."""
    kind = "megatron" if s.is_megatron else "compiled" if s.compiled else "eager"
    seconds = DETERMINISTIC if s.deterministic and s.is_megatron else HOST[kind]
    seconds *= (HOST_ADAPTER if s.lora else 1.0) * (HOST_PACKED if s.quantized else 1.0)
    seconds += HOST_FSDP if s.is_fsdp and not s.is_megatron else 0.0
    seconds *= 1 + (HOST_AGAIN if s.recompute == "full" else 0.0)
    with_experts = sum(count for layer, count in shape.layers if layer.expert_count) / shape.count
    reads_back = s.is_megatron and not (card.domain > 8 and s.release >= GRAPHS_SINCE)
    return seconds + with_experts * (HOST_EXPERTS if reads_back else HOST_EXPERTS_GRAPHS)


def _head(shape: NetworkShape, s: TrainSetting, card: SpeedCard) -> float:
    """Embedding, head and loss of a micro-batch, in 16 bits."""
    rows, vocab, hidden = s.tokens, shape.vocab / s.tp, shape.hidden
    forward = product(card, rows, vocab, hidden, "bf16")
    inputs = product(card, rows, hidden, vocab, "bf16")
    weight = 0.0 if s.lora else product(card, hidden, vocab, rows, "bf16", accumulates=True)
    backward = forward if s.lora else (inputs + weight) / BACKWARD
    moved = LOSS_BYTES[s.is_megatron] * rows * vocab + EMBEDDING_BYTES * outer_tokens(s) * hidden
    return forward + backward + moved / (card.stream * STREAMS)


def _slowest(s: TrainSetting, layers: float, blocks: float, head: float, mean: float) -> float:
    """The slowest stage: uneven stages give most of the head's time away."""
    if s.pp == 1:
        return mean
    with_head = math.ceil(layers / s.pp) * blocks / layers + head
    return max(mean, min(with_head, blocks / s.pp + HEAD_SHIFTED * head))


def _message(shape: NetworkShape, s: TrainSetting, card: SpeedCard) -> float:
    near = s.tp * s.cp * min(2, s.pp) <= s.domain and s.tp * s.pp * s.cp <= s.domain
    return outer_tokens(s) * shape.hidden * 2 / pair_rate(card, near=near) + MESSAGE


def _chunks(s: TrainSetting) -> int:
    return s.virtual if s.schedule == "interleaved" else 1


def _bubble(s: TrainSetting, mean: float, message: float) -> float:
    chunks = _chunks(s)
    bubble = (s.pp - 1) / chunks * (mean + 2 * message * chunks)
    return bubble * (SPLIT_BUBBLE if s.schedule in SPLIT_BACKWARD else 1.0)


def _messages(s: TrainSetting, message: float) -> float:
    chunks = _chunks(s)
    return s.grad_accum * 2 * message * (MESSAGES_SEEN if chunks == 1 else MESSAGES_SEEN_VIRTUAL * chunks)
