"""What can change in a serving job, with its price."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.plan.advice.facts import Facts
from everybyte.plan.advice.move import Move, Settings
from everybyte.plan.formats import GGUF

ROUND, PAGE = 1024, 16
"""Tokens by which contexts are rounded; by which an engine's own limit is."""
SMALLEST_CONTEXT = 2048
LLAMACPP = ("llama.cpp", "ollama")
SHARES = (0.95, 0.97, 0.98)
"""Shares of the device that people give an engine when the default is too small."""
PACKED = {
    "vllm": ("fp8", "awq"),
    "sglang": ("fp8", "awq"),
    "tensorrt-llm": ("fp8", "awq"),
    "lmdeploy": ("awq",),
    "tgi": ("fp8", "awq"),
    "transformers": ("int8", "nf4"),
    "mlx": ("int8", "int4"),
}
"""Formats that an engine loads, the widest first."""
BITS = {"fp32": 32.0, "bf16": 16.0, "fp16": 16.0, "fp8": 8.0, "int8": 8.0, "awq": 4.0, "nf4": 4.0, "int4": 4.0, "gptq": 4.0, "mxfp4": 4.0, "nvfp4": 4.0}
CACHES = {
    "vllm": ("fp8",),
    "sglang": ("fp8_e5m2",),
    "tensorrt-llm": ("fp8",),
    "lmdeploy": ("int8",),
    "llama.cpp": ("q8_0", "q4_0"),
    "ollama": ("q8_0", "q4_0"),
    "exllama": ("q8", "q4"),
}
WIDE_CACHES = ("", "auto", "fp16", "bf16", "fp32")


def _share(f: Facts) -> Iterator[Settings]:
    if f.word("serve.engine") in ("vllm", "sglang"):
        now = float(f.get("serve.memory_fraction", 0) or 0)
        yield from ({"serve.memory_fraction": share} for share in SHARES if share > now)


def _context(f: Facts) -> Iterator[Settings]:
    context, tokens = int(f.get("serve.context", 0)), int(f.answer.figures.get("kv.tokens", 0))
    held = tokens if tokens < context else 0
    sizes = {held // PAGE * PAGE, *(context // 2**k // ROUND * ROUND for k in range(1, 8))}
    yield from ({"serve.context": size} for size in sorted(sizes, reverse=True) if SMALLEST_CONTEXT <= size < context)


def _cache(f: Facts) -> Iterator[Settings]:
    kinds = f.get("serve.kv_dtype")
    now = kinds.get("k", "") if isinstance(kinds, dict) else f.word("serve.kv_dtype")
    if now in WIDE_CACHES:
        yield from ({"serve.kv_dtype": {"k": word, "v": word}} for word in CACHES.get(f.word("serve.engine"), ()))


def _weights(f: Facts) -> Iterator[Settings]:
    engine, now = f.word("serve.engine"), f.word("serve.weights.format") or "bf16"
    if engine in LLAMACPP:
        at = GGUF.index(now) + 1 if now in GGUF else 1
        yield from ({"serve.weights.format": word} for word in GGUF[at:] if not word.endswith(("_s", "_xs", "_xxs")))
        return
    yield from ({"serve.weights.format": word} for word in PACKED.get(engine, ()) if BITS[word] < BITS.get(now, 4.0))


def _gguf(f: Facts) -> Iterator[Settings]:
    """Another engine is only suggested where the person named none."""
    if "serve.engine" in f.taken and f.gpus == 1 and f.word("serve.engine") not in LLAMACPP:
        yield from ({"serve.engine": "llama.cpp", "serve.weights.format": word} for word in ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k", "iq2_xs"))


def _fewer_at_once(f: Facts) -> Iterator[Settings]:
    key = "serve.parallel_slots" if f.word("serve.engine") in LLAMACPP else "serve.sequences"
    many = int(f.get(key, 1) or 1)
    if f.word("serve.engine") in (*LLAMACPP, "transformers", "exllama", "mlx"):
        yield from ({key: many // 2**k} for k in range(1, 8) if many // 2**k >= 1)


def _batched(f: Facts) -> Iterator[Settings]:
    tokens = int(f.get("serve.batched_tokens", 0) or 0)
    if f.word("serve.engine") in ("vllm", "sglang", "tensorrt-llm"):
        yield from ({"serve.batched_tokens": tokens // 2**k} for k in range(1, 4) if tokens // 2**k >= SMALLEST_CONTEXT)


def _ubatch(f: Facts) -> Iterator[Settings]:
    tokens = int(f.get("serve.ubatch", 0) or 0)
    if f.word("serve.engine") in LLAMACPP:
        yield from ({"serve.ubatch": tokens // 2**k} for k in range(1, 3) if tokens // 2**k >= 128)


def _graphs(f: Facts) -> Iterator[Settings]:
    if f.word("serve.engine") in ("vllm", "sglang") and f.get("serve.cuda_graphs", True) is not False:
        yield {"serve.cuda_graphs": False}


def _layers_on_host(f: Facts) -> Iterator[Settings]:
    layers, now = f.answer.model.layers, int(f.get("serve.gpu_layers", -1))
    full = layers if now < 0 else now
    if f.word("serve.engine") in LLAMACPP:
        yield from ({"serve.gpu_layers": full * eighths // 8} for eighths in (7, 6, 5, 4, 3, 2, 1) if 0 < full * eighths // 8 < full)


SERVING: tuple[Move, ...] = (
    Move("share of the GPU", 1, "less room for other processes on the GPU", _share),
    Move("smaller pieces of prompts", 2, "prompts are read in smaller pieces: a little slower", _batched),
    Move("smaller physical batch", 2, "prompts are read in smaller pieces: slower", _ubatch),
    Move("no CUDA graphs", 4, "decoding is slower", _graphs),
    Move("shorter context", 3, "longer requests are refused", _context, changes_objective=True),
    Move("fewer at once", 3, "fewer requests at the same time", _fewer_at_once),
    Move("quantized cache", 4, "a small loss of quality", _cache, changes_objective=True),
    Move("quantized weights", 5, "a loss of quality that grows as bits get fewer", _weights, changes_objective=True, excludes=("GGUF",)),
    Move(
        "GGUF",
        6,
        "llama.cpp with quantized weights: fewer requests at once, a loss of quality",
        _gguf,
        changes_objective=True,
        restarts=True,
        excludes=(
            "quantized weights",
            "quantized cache",
            "share of the GPU",
            "smaller pieces of prompts",
            "no CUDA graphs",
            "shorter context",
            "fewer at once",
            "more GPUs",
            "larger GPU",
        ),
    ),
    Move("layers on the host", 8, "layers on the CPU: much slower", _layers_on_host),
)
"""In the order of what they cost."""
