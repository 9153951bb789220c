"""One decode step: each weight is read once for all sequences, each cache once for its own; small kernels and collectives in between."""

from __future__ import annotations

from everybyte.catalog.speed_cards import SpeedCard
from everybyte.ledger.time import Term, TimeLedger
from everybyte.plan.time.serving.setting import ServeSetting
from everybyte.plan.time.shape import LayerShape, NetworkShape

READ_SHARE = {
    "bf16": 0.86,
    "fp16": 0.86,
    "fp8": 0.80,
    "int8": 0.74,
    "nvfp4": 0.70,
    "mxfp4": 0.60,
    "int4": 0.62,
    "exl2": 0.80,
    "q4_k_m": 0.70,
    "q4_0": 0.74,
    "q8_0": 0.82,
}
"""Share of the memory's bandwidth that products of one row reach, by format of the weights (aiconfigurator's tables; gpt-fast, exllamav2, llama.cpp)."""
OTHER_READ_SHARE = 0.70
GGUF_CONSUMER = 0.92 / 0.87
"""Gain of ggml's 16-bit kernels on cards without HBM."""
HBM_FROM = 1100e9
PER_CLOCK = {True: 5.7, False: 4.6}
"""Bytes a clock that a multiprocessor takes in ggml's products of 16 bits, of packed weights: this, not HBM, bounds data-centre cards."""
WIDE_GAIN, WIDE_FROM = 1.35, 8192
"""Wider matrices keep more of its loads in flight."""
CLOCK = 2.4e9
"""Where the card's row states no clock."""
KERNEL = 2.6e-6
"""A small kernel inside a CUDA graph: launch and drain."""
LAYER_KERNELS = {"llama.cpp": 10, "ollama": 10, "gpt-fast": 4}
OTHER_LAYER_KERNELS = 9
"""Such kernels a layer beside its products: norms, rotary embedding, cache write, activation, residual."""
EXPERT_KERNELS = 8
ATTENTION_LEAST, ATTENTION_LEAST_GGUF = 9e-6, 6e-6
"""What attention of one token takes at least: its split and its merge."""
CACHE_SHARE, CACHE_SHARE_GGUF = 0.80, 0.55
ALL_REDUCE = {1: 0.0, 2: 5.5e-6, 4: 7e-6, 8: 9.5e-6}
"""A small all-reduce in a CUDA graph, one-shot kernels over NVLink, by ranks."""
ALL_REDUCE_MORE, ALL_REDUCE_PCIE = 12e-6, 18e-6
NVLINK_FROM = 60e9
EXPERT_READ, EXPERT_RATE = 0.85, 0.6
"""Bandwidth and rate of grouped products of few rows against plain ones."""
EXCHANGE_START, EXCHANGE_SHARE = 12e-6, 0.7
HEAD_SHARE = 0.85
SAMPLING = 30e-6
HOST = {
    "vllm": 1.0e-3,
    "sglang": 0.6e-3,
    "tensorrt-llm": 0.5e-3,
    "llama.cpp": 0.12e-3,
    "ollama": 0.12e-3,
    "gpt-fast": 0.05e-3,
    "exllama": 0.25e-3,
    "transformers": 20e-3,
}
OTHER_HOST = 1.0e-3
"""A step's time outside the GPU that nothing hides, by engine."""
HOST_SEQUENCE = 4e-6
BATCHING = ("vllm", "sglang", "tensorrt-llm", "tgi", "lmdeploy")
STAGE, GGUF_STAGE = 15e-6, 60e-6
PLAIN_HEAD = ("fp8", "nvfp4", "mxfp4", "int4", "bf16", "fp16", "int8", "awq", "gptq")
"""Formats that leave the head in 16 bits."""


def decode_step(shape: NetworkShape, s: ServeSetting, card: SpeedCard, sequences: float, context: float) -> TimeLedger:
    """The terms of one step for so many sequences over all replicas, each with `context` tokens in the cache."""
    here = max(1.0, sequences / s.dp)
    read = kernels = cache = reduce = routed = 0.0
    for layer, count in shape.layers:
        bits = 16.0 if s.weights == "mxfp4" else s.bits
        read += count * _product(layer.mixer_parameters / s.tp, here, bits, s, card)
        mlp_bits = bits if layer.expert_count else s.bits
        read += count * _product(layer.mlp_parameters / s.tp, here, mlp_bits, s, card)
        kernels += count * KERNEL * (LAYER_KERNELS.get(s.engine, OTHER_LAYER_KERNELS) + 2 + (2 if layer.mlp_parameters else 0))
        cache += count * _attention(layer, s, card, here, context)
        reduce += count * _all_reduce(layer, s, card, here)
        if layer.expert_count:
            routed += count * _experts(layer, s, card, sequences)
    terms = (
        Term("weights", read, "max(weight bytes / bandwidth share, 2·weights·sequences / rate)", "Pope et al. 2022, section 2.1"),
        Term("experts", routed, "E·(1 - (1 - k/E)^B) experts are read", "even routing"),
        Term("attention", cache, "cache bytes / (0.8 × bandwidth) + 9 us", "FlashDecoding"),
        Term("small kernels", kernels, "kernels a layer × 2.6 us", "kernels inside a CUDA graph"),
        Term("tensor parallelism", reduce, "2 all-reduces a layer", "one-shot all-reduce kernels"),
        Term("head", _head(shape, s, card, here), "head bytes / bandwidth + logits", "product of the vocabulary"),
        Term("pipeline", _stages(shape, s, card, here), "messages between stages", "pipeline parallelism"),
        Term("host", _host(s, here * s.dp), "scheduler and sampler", "engine's own loop"),
    )
    return TimeLedger(tuple(term for term in terms if term.seconds > 0))


def rate_of(card: SpeedCard, form: str) -> float:
    """FLOP/s of products in serving: short bursts, not held back by power."""
    return card.products[form] * card.reached[form]


def _read(moved: float, s: ServeSetting, card: SpeedCard, hidden: int) -> float:
    """Seconds to read weights."""
    share = READ_SHARE.get(s.weights, OTHER_READ_SHARE) * s.power
    if not s.is_gguf:
        return moved / (card.memory * share)
    is_wide_format = s.weights in ("fp16", "bf16")
    share *= GGUF_CONSUMER if card.memory < HBM_FROM and is_wide_format else 1.0
    taken = PER_CLOCK[is_wide_format] * card.multiprocessors * (card.clock or CLOCK) * (WIDE_GAIN if hidden >= WIDE_FROM else 1.0)
    return max(moved / (card.memory * share), moved / taken)


def _product(weights: float, rows: float, bits: float, s: ServeSetting, card: SpeedCard, hidden: int = 0) -> float:
    if not weights:
        return 0.0
    return max(_read(weights * bits / 8, s, card, hidden), 2.0 * weights * rows / rate_of(card, s.form))


def _attention(layer: LayerShape, s: ServeSetting, card: SpeedCard, sequences: float, context: float) -> float:
    if not layer.heads:
        return layer.state * sequences * 4 * 16 / (card.memory * CACHE_SHARE) + ATTENTION_LEAST if layer.state else 0.0
    seen = min(context, layer.window) if layer.window else context
    width = layer.cached if layer.latent else max(layer.cached / s.tp, 2 * layer.head_dim)
    moved = sequences * seen * width * s.cache_bytes
    if s.is_gguf:
        return ATTENTION_LEAST_GGUF + moved / (card.memory * CACHE_SHARE_GGUF)
    return ATTENTION_LEAST + moved / (card.memory * CACHE_SHARE)


def _all_reduce(layer: LayerShape, s: ServeSetting, card: SpeedCard, sequences: float) -> float:
    if s.tp == 1:
        return 0.0
    moved = 2 * 2 * (s.tp - 1) / s.tp * sequences * layer.hidden * 2 / card.link
    if card.link < NVLINK_FROM:
        return 2 * ALL_REDUCE_PCIE * (s.tp.bit_length() - 1) + moved
    return 2 * ALL_REDUCE.get(s.tp, ALL_REDUCE_MORE) + moved


def _experts(layer: LayerShape, s: ServeSetting, card: SpeedCard, sequences: float) -> float:
    """Experts that at least one token meets are read; with expert parallelism each rank reads its own."""
    met = layer.expert_count * (1 - (1 - layer.top_k / layer.expert_count) ** sequences)
    each = layer.expert_parameters / (1 if s.ep > 1 else s.tp)
    moved = met / (max(1, s.ep)) * each * s.bits / 8
    flops = 2.0 * sequences * layer.top_k * each / (max(1, s.ep))
    share = READ_SHARE.get(s.weights, OTHER_READ_SHARE) * EXPERT_READ
    seconds: float = max(moved / (card.memory * share), flops / (rate_of(card, s.form) * EXPERT_RATE))
    seconds += (2 + EXPERT_KERNELS) * KERNEL
    if s.dp > 1:
        seconds += 2 * (EXCHANGE_START + sequences / s.dp * layer.hidden * 2 * min(layer.top_k, 8) / (card.link * EXCHANGE_SHARE))
    return seconds


def _head(shape: NetworkShape, s: ServeSetting, card: SpeedCard, sequences: float) -> float:
    weights = shape.vocab * shape.hidden / s.tp
    size = 2.0 if s.weights in PLAIN_HEAD else s.bits / 8
    read = max(weights * size / (card.memory * HEAD_SHARE), 2.0 * weights * sequences / rate_of(card, "bf16"))
    return read + SAMPLING + sequences * shape.vocab * 8 / s.tp / card.stream


def _host(s: ServeSetting, sequences: float) -> float:
    return HOST.get(s.engine, OTHER_HOST) + (sequences * HOST_SEQUENCE if s.engine in BATCHING else 0.0)


def _stages(shape: NetworkShape, s: ServeSetting, card: SpeedCard, sequences: float) -> float:
    if s.is_gguf:
        return (s.gpus - 1) * GGUF_STAGE
    return (s.pp - 1) * (STAGE + sequences * shape.hidden * 2 / card.link)
