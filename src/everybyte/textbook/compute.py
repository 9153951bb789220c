"""Floating-point operations, which price what recomputation saves."""

from __future__ import annotations

from everybyte.basics.citation import Citation
from everybyte.textbook.formula import formula

PALM = Citation("Chowdhery et al. 2022, appendix B", "https://arxiv.org/abs/2204.02311")
SCALING = Citation("Kaplan et al. 2020, section 2.1", "https://arxiv.org/abs/2001.08361")
KORTHIKANTI = Citation("Korthikanti et al. 2022, appendix A", "https://arxiv.org/abs/2205.05198")

_UNIT = "FLOPs"


@formula(
    "flops-token",
    "6·P + 12·L·s·A",
    PALM,
    "Counts the whole score matrix; a causal kernel computes half of it. A mixture of experts needs its active parameters.",
    _UNIT,
)
def flops_token(*, P: int, L: int, s: int, A: int) -> int:
    """Training FLOPs a token: 2 a parameter forward and 4 backward, and the same for scores and their use."""
    return 6 * P + 12 * L * s * A


@formula("flops-forward", "2·P", SCALING, "Leaves out attention scores, 4·L·s·A a token.", _UNIT)
def flops_forward(*, P: int) -> int:
    """Forward FLOPs a token: a multiplication and an addition a parameter."""
    return 2 * P


@formula("flops-step", "72·b·s·L·h·h + 12·b·s·s·L·h + 6·b·s·h·V", KORTHIKANTI, "For GPT blocks with an MLP of 4·h.", _UNIT)
def flops_step(*, b: int, s: int, L: int, h: int, V: int) -> int:
    """Model FLOPs of a forward and backward pass of a GPT model: 72·b·s·L·h·h·(1 + s/(6·h) + V/(12·h·L))."""
    return 72 * b * s * L * h * h + 12 * b * s * s * L * h + 6 * b * s * h * V


@formula(
    "flops-selective",
    "12·b·s·s·L·h",
    KORTHIKANTI,
    "Three times too much: the scores are computed once more forward, which is 4·b·s·s·L·h (0.9 % of a step of GPT-3, not 2.7 %).",
    _UNIT,
)
def flops_selective(*, b: int, s: int, L: int, h: int) -> int:
    """FLOPs that selective recomputation adds to a step, as the paper counts them: hardware over model FLOPs is 1 + s/(6·h)."""
    return 12 * b * s * s * L * h


@formula("flops-full", "24·b·s·L·h·h + 4·b·s·s·L·h", KORTHIKANTI, "As flops-step.", _UNIT)
def flops_full(*, b: int, s: int, L: int, h: int) -> int:
    """FLOPs that full recomputation adds to a step: one more forward pass of the layers."""
    return 24 * b * s * L * h * h + 4 * b * s * s * L * h
