"""Weights in packed formats."""

from __future__ import annotations

from everybyte.basics.citation import Citation
from everybyte.basics.units import ceil_div
from everybyte.textbook.formula import formula

QLORA = Citation("Dettmers et al. 2023, section 3", "https://arxiv.org/abs/2305.14314")
LLM_INT8 = Citation("Dettmers et al. 2022, section 2: one scale a row", "https://arxiv.org/abs/2208.07339")
GPTQ = Citation("Frantar et al. 2022, section 4: groups share scale and zero; packed as int32 by AutoGPTQ", "https://arxiv.org/abs/2210.17323")
OCP = Citation("OCP Microscaling Formats (MX) v1.0, section 5: 32 elements share one 8-bit scale")

_LINEAR_ONLY = "Linear layers only: embeddings, head and norms stay 16-bit, which dominates a small model with a large vocabulary."


@formula("nf4", "ceil(P/2) + 4·ceil(P/64)", QLORA, _LINEAR_ONLY)
def nf4(*, P: int) -> int:
    """4-bit NormalFloat of bitsandbytes: half a byte a weight, an fp32 scale for 64 weights."""
    return ceil_div(P, 2) + 4 * ceil_div(P, 64)


@formula("nf4-double", "ceil(P/2) + ceil(P/64) + 4·ceil(P/16384)", QLORA, _LINEAR_ONLY)
def nf4_double(*, P: int) -> int:
    """NF4 with double quantisation: the scales take a byte each, with an fp32 scale for 256 of them (0.127 instead of 0.5 bits a weight)."""
    return ceil_div(P, 2) + ceil_div(P, 64) + 4 * ceil_div(P, 64 * 256)


@formula("int8", "P + 4·rows", LLM_INT8, "Outlier columns are computed in 16 bits at run time, with temporaries; " + _LINEAR_ONLY)
def int8(*, P: int, rows: int) -> int:
    """LLM.int8 of bitsandbytes: a byte a weight, an fp32 scale an output row."""
    return P + 4 * rows


@formula("gptq", "P·bits/8 + ceil(P/g)·(2 + bits/8)", GPTQ, "With activation order an int32 group index for each input comes on top; " + _LINEAR_ONLY)
def gptq(*, P: int, bits: int, g: int) -> int:
    """GPTQ and AWQ: packed weights, and a 16-bit scale and a packed zero for each group of g weights."""
    return ceil_div(P * bits, 8) + ceil_div(ceil_div(P, g) * (16 + bits), 8)


@formula("block-scaled", "ceil(P·bits/8) + ceil(P/B)", OCP, "NVFP4 has a further fp32 scale a tensor.")
def block_scaled(*, P: int, bits: int, B: int) -> int:
    """Microscaling formats: one 8-bit scale for a block of B weights (MXFP4, MXFP8: 32; NVFP4: 16)."""
    return ceil_div(P * bits, 8) + ceil_div(P, B)
