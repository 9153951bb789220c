"""How long single kernels take: matrix products by shape, grouped products of experts, attention, and streams through memory. Seconds."""

from __future__ import annotations

import math

from everybyte.catalog.speed_cards import SpeedCard

TILE = 128
"""Rows and columns of a tile of a matrix product (cuBLAS and CUTLASS kernels of large products)."""
LAST_WAVE = {"bf16": 0.15, "fp8": 0.6, "fp4": 0.6}
"""Share of an unfilled last wave of tiles that is lost: stream-K kernels of 16 bits divide it (aiconfigurator's tables of products)."""
SHORT_INNER = {"bf16": 0, "fp8": 350, "fp4": 350}
"""Inner length at which a product of low precision reaches half its rate (same tables)."""
ELEMENT = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.56}
"""Bytes of an operand's element, scales counted."""
RESULT, ACCUMULATED = 2.0, 8.0
"""Bytes an element that a result of 16 bits writes; that a weight gradient reads and adds in fp32."""
GROUPED = 0.85
"""Rate of grouped products against one product of their size (same tables, grouped products)."""
SMALL_HEAD, SMALL_HEAD_POWER = 128, 0.35
"""Heads narrower than this reach (d/128)^0.35 of the rate (FlashAttention-2 paper, figures 4 and 5)."""
IN_A_STEP = 0.97
"""Rate of attention in a running step against the kernel alone."""


def product(card: SpeedCard, rows: float, out: float, inner: float, form: str, *, accumulates: bool = False) -> float:
    """rows x inner times inner x out in the given format: the longer of its arithmetic and its bytes, and half a launch that is not hidden."""
    if rows <= 0 or out <= 0 or inner <= 0:
        return 0.0
    waves = math.ceil(rows / TILE) * math.ceil(out / TILE) / card.multiprocessors
    unfilled = 1 + (math.ceil(waves) / waves - 1) * LAST_WAVE[form]
    arithmetic = 2.0 * rows * out * inner * unfilled / (card.rate(form) * inner / (inner + SHORT_INNER[form]))
    moved = ELEMENT[form] * inner * (rows + out) + (ACCUMULATED if accumulates else RESULT) * rows * out
    return 0.5 * card.launch + max(arithmetic, moved / card.stream)


def grouped_product(card: SpeedCard, groups: float, rows: float, out: float, inner: float, form: str, *, accumulates: bool = False) -> float:
    """One launch for `groups` products of `rows` each; tiles are filled up to whole ones."""
    filled = math.ceil(rows / TILE) * TILE
    arithmetic = 2.0 * filled * out * inner / (card.rate(form) * GROUPED * inner / (inner + SHORT_INNER[form]))
    moved = ELEMENT[form] * inner * (rows + out) + (ACCUMULATED if accumulates else RESULT) * rows * out
    return groups * max(arithmetic, moved / card.stream)


def attention_rate(card: SpeedCard, share: float, half_length: float, head_dim: float, length: float) -> float:
    """FLOP/s of an attention kernel on sequences of `length`."""
    narrow = min(1.0, (head_dim / SMALL_HEAD) ** SMALL_HEAD_POWER) if head_dim else 1.0
    return card.products["bf16"] * share * narrow * length / (length + half_length) * IN_A_STEP
