"""How categories, figures and sizes are called and shown to people. Sizes carry their unit; GiB is 2^30."""

from __future__ import annotations

from typing import Any, Literal

from everybyte.basics.units import UNITS
from everybyte.ledger.entry import Category
from everybyte.report.language import said

CATEGORY_STYLE: dict[Category, str] = {
    "parameter": "blue",
    "gradient": "cyan",
    "optimizer_state": "magenta",
    "activation": "green",
    "input": "bright_green",
    "temporary": "yellow",
    "autograd_detail": "bright_yellow",
    "kv_cache": "green",
    "state": "bright_green",
    "comm_buffer": "bright_cyan",
    "workspace": "bright_magenta",
    "context": "bright_black",
    "graph_pool": "bright_blue",
    "fragmentation": "white",
    "unknown": "red",
}

CATEGORY_LABEL: dict[Category, str] = {"fragmentation": "reserved, unused", "context": "outside the allocator", "unknown": "unexplained"}
"""Categories of which a picture says more than their name."""

TORCH_FIGURES = ("peak.allocated", "peak.reserved", "peak.device", "peak.device.instant")
"""What each counts is in `FIGURE_MEANING`; they are never added to one another."""

FIGURE_MEANING: dict[str, str] = {
    "peak.allocated": "tensors at the peak (torch max_memory_allocated)",
    "peak.reserved": "held by torch's caching allocator (max_memory_reserved)",
    "peak.device": "whole process (nvidia-smi, amd-smi)",
    "peak.device.instant": "whole process before the cache is given back",
    "static.allocated": "tensors between two steps (steady state)",
    "weights": "weights on this GPU",
    "kv.bytes_per_token": "KV cache per token",
    "kv.bytes": "KV cache, allocated up front",
    "kv.pool": "memory for the KV cache",
    "kv.tokens": "tokens that fit in the KV cache",
    "kv.blocks": "KV cache blocks",
    "kv.block_size": "tokens per block",
    "kv.concurrency": "max concurrency at full context",
    "kv.swa_bytes": "KV cache of sliding-window layers",
    "state.bytes": "recurrent (SSM) state",
    "activation_peak": "peak activations of the profiling run",
    "non_torch": "memory outside torch",
    "cuda_graphs": "CUDA graphs",
    "compute_buffer": "compute buffer",
    "file_bytes": "size of the weights file",
    "host.bytes": "host memory per node",
    "step.time_s": "time of a training step",
    "tokens_per_s_per_gpu": "trained tokens",
    "tflops_per_gpu": "model FLOPs",
    "mfu": "share of the 16-bit peak",
    "decode.tokens_per_s": "generated tokens of one request",
    "decode.batch_tokens_per_s": "generated tokens of all requests",
    "prefill.tokens_per_s": "tokens of one prompt",
    "ttft_s": "time to first token",
}

_GGML = {"peak.allocated": "backend buffers at the peak", "peak.reserved": "backend buffers"}
ENGINE_MEANING: dict[str, dict[str, str]] = {
    "mlx": {
        "peak.allocated": "arrays at the peak (mx.get_peak_memory)",
        "peak.reserved": "held by MLX's allocator",
        "peak.device": "whole process, in unified memory",
    },
    "llama.cpp": _GGML,
    "ollama": _GGML,
}
"""What figures mean where an engine does not run on torch."""

COUNTS = frozenset({"kv.tokens", "kv.blocks", "kv.block_size", "kv.concurrency"})
"""Figures that are no sizes."""

SPEEDS: dict[str, Literal["time", "rate", "share", "TFLOP/s"]] = {
    "step.time_s": "time",
    "ttft_s": "time",
    "tokens_per_s_per_gpu": "rate",
    "decode.tokens_per_s": "rate",
    "decode.batch_tokens_per_s": "rate",
    "prefill.tokens_per_s": "rate",
    "tflops_per_gpu": "TFLOP/s",
    "mfu": "share",
}
"""Figures of speed and what they are counted in."""


def speed_text(name: str, value: float) -> str:
    """`1.42 s`, `35 ms`, `4,906/s`, `412 TFLOP/s`, `41 %`."""
    match SPEEDS[name]:
        case "time":
            return f"{value:,.2f} s" if value >= 1 else f"{value * 1000:,.0f} ms"
        case "rate":
            return f"{value:,.0f}/s" if value >= 10 else f"{value:.1f}/s"
        case "share":
            return f"{100 * value:.0f} %"
    return f"{value:,.0f} TFLOP/s"


def amount(n: int, unit: str = "GiB", digits: int = 2) -> str:
    """`21.40`: n bytes in a unit, without its name. What would round to nothing is `<0.01`."""
    if unit == "B":
        return f"{n:,}"
    text = f"{n / UNITS[unit]:,.{digits}f}"
    least = f"{10**-digits:.{digits}f}"
    return f"<{least}" if n > 0 and float(text.replace(",", "")) == 0 else text


def short_size(n: int, unit: str = "GiB", digits: int = 1) -> str:
    """`21.4 GiB`; a small size in MiB, so that it does not become nothing."""
    if unit == "GiB" and abs(n) < UNITS["GiB"] // 10:
        return f"{amount(n, 'MiB', digits - 1)} MiB"
    return f"{amount(n, unit, digits)} {unit}"


def count(n: int) -> str:
    """`8.03 B`, `41.9 M`: a number of parameters."""
    for name, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= size:
            return f"{n / size:.3g} {name}"
    return str(n)


def spoken(name: str) -> str:
    """`optimizer_state` -> `optimizer state`."""
    return said(name.replace("_", " "))


def figure_meaning(name: str, job: dict[str, Any]) -> str:
    """What a figure counts, in the words of the engine that the job names; empty for figures without words."""
    engine = (job.get("serve") or {}).get("engine", "")
    return said(ENGINE_MEANING.get(engine, {}).get(name) or FIGURE_MEANING.get(name, ""))


def category_label(category: Category) -> str:
    """A category in the words of a picture."""
    return said(CATEGORY_LABEL.get(category) or spoken(category))


def capital(text: str) -> str:
    """The text as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def shown_value(value: object) -> str:
    """The value of a setting as a job file writes it."""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else "none" if value is None else str(value)
