"""How long a prompt takes before its first token."""

from __future__ import annotations

import math

from everybyte.catalog.speed_cards import SpeedCard, attention_kernel
from everybyte.ledger.time import Term, TimeLedger
from everybyte.plan.time.kernels import attention_rate
from everybyte.plan.time.serving.decode import ALL_REDUCE_MORE, HOST, OTHER_HOST, rate_of
from everybyte.plan.time.serving.setting import ServeSetting
from everybyte.plan.time.shape import LayerShape, NetworkShape

REACHED, REACHED_GGUF = 0.80, {True: 0.72, False: 0.62}
"""Share of the rate of large products that a prefill reaches over all; of ggml's kernels of 16 bits, of packed weights."""
SHORT = 160.0
"""Tokens of a chunk at which products reach half their rate."""
CHUNK, GGUF_CHUNK = 8192, 512
"""Tokens that are run at once: what engines batch, ggml's micro-batch."""
STREAM_BYTES, STREAM_SHARE = 30, 0.8
"""Bytes an element of the hidden state that elementwise kernels of a layer move."""
LAYER_START, GGUF_LAYER_START = 60e-6, 18e-6
"""Launches of a layer outside CUDA graphs."""
NARROW_SHARE = 0.85
"""Share of the doubled rate of 16-bit accumulation that is reached, memory being as fast as before."""
GGUF_ATTENTION = 0.5
PIPELINED = 1 / 0.8
"""Loss of a pipeline of chunks over several cards."""


def prefill(shape: NetworkShape, s: ServeSetting, card: SpeedCard, tokens: int) -> TimeLedger:
    """The terms of one prompt of so many tokens."""
    chunk = GGUF_CHUNK if s.is_gguf else CHUNK
    rate = _rate(s, card)
    at_once = min(tokens, chunk)
    met = sum(count * (layer.mixer_parameters + layer.mlp_parameters + layer.top_k * layer.expert_parameters) for layer, count in shape.layers)
    arithmetic = 2.0 * met * tokens / (s.tp * rate * at_once / (at_once + SHORT))
    read = math.ceil(tokens / chunk) * _weights(shape, s, tokens) * s.bits / 8 / (card.memory * STREAM_SHARE)
    streams = shape.count * tokens * STREAM_BYTES * shape.hidden / (card.memory * STREAM_SHARE)
    terms = (
        Term("matrix products", max(arithmetic, read), "2·weights·tokens / (0.8 × rate), or the weights' bytes", "tables of matrix products by shape and card"),
        Term("attention", _scores(shape, s, card, tokens), "2·a·(d_q + d_v)·tokens²/2 / kernel's rate", "FlashAttention-2 and -3 papers"),
        Term("elementwise", streams, "30 B an element / bandwidth", "kernels between products"),
        Term("tensor parallelism", _all_reduces(shape, s, card, tokens), "2 all-reduces a layer", "NCCL's rings"),
        Term("host", _host(shape, s), "launches outside CUDA graphs", "engine's own loop"),
    )
    spread = _spread_over_cards(s, tokens)
    return TimeLedger(tuple(Term(t.name, t.seconds * spread, t.formula, t.source) for t in terms if t.seconds > 0))


def _rate(s: ServeSetting, card: SpeedCard) -> float:
    """FLOP/s over a whole prefill."""
    if not s.is_gguf:
        return rate_of(card, s.form) * REACHED
    gain = card.narrow_gain * (NARROW_SHARE if card.narrow_gain > 1 else 1.0)
    return rate_of(card, "bf16") * REACHED_GGUF[s.weights in ("fp16", "bf16")] * gain


def _host(shape: NetworkShape, s: ServeSetting) -> float:
    return HOST.get(s.engine, OTHER_HOST) + shape.count * (GGUF_LAYER_START if s.is_gguf else LAYER_START)


def _weights(shape: NetworkShape, s: ServeSetting, tokens: int) -> float:
    """Weights that a chunk reads on a rank."""
    experts = 0.0
    for layer, count in shape.layers:
        if layer.expert_count:
            share = min(1.0, tokens * layer.top_k / layer.expert_count)
            experts += share * count * layer.expert_count * layer.expert_parameters
    return shape.dense_parameters / s.tp + experts / max(s.tp, s.ep)


def _scores(shape: NetworkShape, s: ServeSetting, card: SpeedCard, tokens: int) -> float:
    kernel = attention_kernel(card, "sdpa" if s.is_gguf else "te")
    total = 0.0
    for layer, count in shape.layers:
        if layer.heads:
            seen = min(tokens / 2, layer.window) if layer.window else tokens / 2
            total += count * _layer_scores(layer, card, kernel.share * (GGUF_ATTENTION if s.is_gguf else 1.0), kernel.half_length, tokens, seen)
    return total / s.tp


def _layer_scores(layer: LayerShape, card: SpeedCard, share: float, half_length: float, tokens: int, seen: float) -> float:
    return 2.0 * (layer.query + layer.value) * tokens * seen / attention_rate(card, share, half_length, layer.head_dim, tokens)


def _all_reduces(shape: NetworkShape, s: ServeSetting, card: SpeedCard, tokens: int) -> float:
    if s.tp == 1:
        return 0.0
    return shape.count * 2 * (2 * (s.tp - 1) / s.tp * tokens * shape.hidden * 2 / card.link + ALL_REDUCE_MORE)


def _spread_over_cards(s: ServeSetting, tokens: int) -> float:
    """ggml splits layers over cards and runs micro-batches behind one another."""
    chunks = math.ceil(tokens / GGUF_CHUNK)
    if not s.is_gguf or s.gpus == 1 or chunks == 1:
        return 1.0
    stages = min(s.gpus, chunks)
    return (1 + (stages - 1) / chunks) / stages * PIPELINED
