"""Inference: weights, cache of keys and values, and the rule of thumb for the rest."""

from __future__ import annotations

from everybyte.basics.citation import Citation
from everybyte.basics.units import ceil_div
from everybyte.textbook.formula import formula

ARITHMETIC = Citation("Chen 2022, Transformer Inference Arithmetic, section kv cache", "https://kipp.ly/transformer-inference-arithmetic")
MATH_101 = Citation("Anthony et al. 2023, Transformer Math 101, section inference", "https://blog.eleuther.ai/transformer-math")
GQA = Citation("Ainslie et al. 2023, section 2.2: groups of query heads share keys and values", "https://arxiv.org/abs/2305.13245")
MLA = Citation("DeepSeek-AI 2024, table 1: (kv_lora + rope)·L elements a token", "https://arxiv.org/abs/2405.04434")
WINDOW = Citation("Jiang et al. 2023, section 2: rolling buffer cache", "https://arxiv.org/abs/2310.06825")


@formula("kv-mha", "2·e·L·h·s·b", ARITHMETIC, "Only for models whose key/value heads span the hidden size; grouped heads need kv-gqa.")
def kv_mha(*, e: int, L: int, h: int, s: int, b: int) -> int:
    """Cache of a multi-head model: a key and a value of the hidden size for each token and layer."""
    return 2 * e * L * h * s * b


@formula(
    "kv-gqa",
    "2·e·L·k·d·s·b",
    GQA,
    "Engines round up to pages, and a tensor-parallel rank keeps at least one head. Sliding-window and recurrent layers keep less.",
)
def kv_gqa(*, e: int, L: int, k: int, d: int, s: int, b: int) -> int:
    """Cache with grouped or single key/value heads."""
    return 2 * e * L * k * d * s * b


@formula(
    "kv-mla",
    "e·L·(kv_lora + rope)·s·b",
    MLA,
    "Not divided by tensor parallelism: every rank keeps the whole. Code that expands keys and values before caching keeps far more.",
)
def kv_mla(*, e: int, L: int, kv_lora: int, rope: int, s: int, b: int) -> int:
    """Cache of multi-head latent attention: one compressed vector and one rotary key for each token and layer."""
    return e * L * (kv_lora + rope) * s * b


@formula(
    "kv-window", "2·e·L·k·d·min(s, w)·b", WINDOW, "Models that mix window and full layers need the sum of both; some engines give every layer the full length."
)
def kv_window(*, e: int, L: int, k: int, d: int, s: int, w: int, b: int) -> int:
    """Cache of layers with a sliding window: never more than the window."""
    return kv_gqa(e=e, L=L, k=k, d=d, s=min(s, w), b=b)


@formula(
    "inference-rule",
    "1.2·weights",
    MATH_101,
    "The cache grows with context and sequences, so no factor on the weights can hold it; engines that fill a budget take all they are given.",
)
def inference_rule(*, weights: int) -> int:
    """The rule of 1.2: a fifth of the weights for everything else."""
    return ceil_div(12 * weights, 10)


@formula("inference-rule-bits", "1.2·P·bits/8", MATH_101, "As inference-rule; a format has scales besides its bits.")
def inference_rule_bits(*, P: int, bits: int) -> int:
    """The rule of 1.2 from parameters and bits a weight."""
    return ceil_div(12 * P * bits, 10 * 8)


@formula("inference", "weights + 2·e·L·k·d·s·b", ARITHMETIC, "Leaves out prefill temporaries, logits, workspaces and the CUDA context.")
def inference(*, weights: int, e: int, L: int, k: int, d: int, s: int, b: int) -> int:
    """Weights and cache, without overhead."""
    return weights + kv_gqa(e=e, L=L, k=k, d=d, s=s, b=b)
