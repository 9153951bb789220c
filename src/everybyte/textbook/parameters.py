"""Parameter counts in closed form."""

from __future__ import annotations

from everybyte.basics.citation import Citation
from everybyte.textbook.formula import formula

MEGATRON = Citation("Narayanan et al. 2021, section 5.1", "https://arxiv.org/abs/2104.04473")
LLAMA = Citation("Touvron et al. 2023, section 2.2 (RMSNorm, SwiGLU, no biases) with grouped heads", "https://arxiv.org/abs/2302.13971")
MIXTRAL = Citation("Jiang et al. 2024, section 2.1: each feed-forward network is replaced by E experts and a router", "https://arxiv.org/abs/2401.04088")
LORA = Citation("Hu et al. 2021, section 4.2: two factors of rank r beside a frozen matrix", "https://arxiv.org/abs/2106.09685")

_UNIT = "parameters"


@formula(
    "params-gpt",
    "12·L·h·h + 13·L·h + (V + s)·h",
    MEGATRON,
    "The last LayerNorm (2·h) is left out; s counts learned positions; head tied to the embedding.",
    _UNIT,
)
def params_gpt(*, L: int, h: int, V: int, s: int) -> int:
    """A GPT model: 4·h·h for attention, 8·h·h for the MLP, 13·h of biases and LayerNorms a layer."""
    return 12 * L * h * h + 13 * L * h + (V + s) * h


@formula("params-llama", "2·V·h + L·(2·h·A + 2·h·k·d + 3·h·f + 2·h) + h", LLAMA, "A tied head counts V·h once. A need not equal h.", _UNIT)
def params_llama(*, V: int, h: int, L: int, A: int, k: int, d: int, f: int) -> int:
    """A Llama model: queries and output h·A, keys and values h·k·d, three feed-forward matrices, two norms a layer."""
    return 2 * V * h + L * (2 * h * A + 2 * h * k * d + 3 * h * f + 2 * h) + h


@formula(
    "params-mixtral", "2·V·h + L·(2·h·A + 2·h·k·d + E·3·h·f + E·h + 2·h) + h", MIXTRAL, "All E experts are resident; `8x7B` is not eight whole models.", _UNIT
)
def params_mixtral(*, V: int, h: int, L: int, A: int, k: int, d: int, f: int, E: int) -> int:
    """A Mixtral model: as Llama, with E feed-forward networks and a router of E·h a layer."""
    return 2 * V * h + L * (2 * h * A + 2 * h * k * d + E * 3 * h * f + E * h + 2 * h) + h


@formula(
    "params-moe-active", "P - L·(E - top)·3·h·f", MIXTRAL, "Decides the FLOPs, not the memory. Shared experts and dense layers count as always active.", _UNIT
)
def params_moe_active(*, P: int, L: int, E: int, top: int, h: int, f: int) -> int:
    """Parameters that a token visits: all but the experts that are not chosen."""
    return P - L * (E - top) * 3 * h * f


@formula(
    "lora-params",
    "n·r·(rows + cols)",
    LORA,
    "Counts one shape of matrix; DoRA adds a magnitude a row. The base model and the activations are not smaller for it.",
    _UNIT,
)
def lora_params(*, n: int, r: int, rows: int, cols: int) -> int:
    """Adapter parameters for n matrices of one shape."""
    return n * r * (rows + cols)


@formula(
    "convolution-params",
    "C_out·(C_in·kernel·kernel + 1)",
    Citation("weights and bias of a 2-D convolution"),
    "Groups divide C_in; without bias it is C_out less.",
    _UNIT,
)
def convolution_params(*, C_out: int, C_in: int, kernel: int) -> int:
    """A 2-D convolution with bias."""
    return C_out * (C_in * kernel * kernel + 1)
