"""Activations kept for the backward pass: Korthikanti et al. 2022 for GPT blocks, pipelines, attention scores and convolutions.

The constants of a GPT block (16-bit, dropout on, f = 4·h): attention keeps 11·s·b·h + 5·a·s²·b (input 2, queries and keys 4, values 2, input of the
projection 2, dropout mask 1; and for each score the softmax output 2, its dropout mask 1 and output 2), the MLP 19·s·b·h (input 2, GELU input 8 and
output 8, dropout mask 1), two LayerNorms 4·s·b·h (input 2 each).
"""

from __future__ import annotations

from everybyte.basics.citation import Citation
from everybyte.basics.units import ceil_div
from everybyte.textbook.formula import formula


def _korthikanti(place: str) -> Citation:
    return Citation(f"Korthikanti et al. 2022, {place}", "https://arxiv.org/abs/2205.05198")


_GPT_ONLY = (
    "Holds for a GPT block alone: GELU MLP of 4·h, dropout on, 16-bit LayerNorm, no grouped heads. SwiGLU, RMSNorm in fp32 and autocast keep other tensors."
)
_FLASH = " FlashAttention and SDPA drop the term with s twice."


@formula("korthikanti-none", "s·b·h·(34 + 5·a·s/h)", _korthikanti("table 2, no parallelism"), _GPT_ONLY + _FLASH)
def korthikanti_none(*, s: int, b: int, h: int, a: int) -> int:
    """A GPT layer on one GPU, everything kept: 34·s·b·h, and 5 bytes for each attention score."""
    return 34 * s * b * h + 5 * a * s * s * b


@formula("korthikanti-tp", "s·b·h·(10 + 24/t + 5·a·s/(h·t))", _korthikanti("table 2, tensor parallel"), _GPT_ONLY + _FLASH)
def korthikanti_tp(*, s: int, b: int, h: int, a: int, t: int) -> int:
    """A GPT layer under tensor parallelism: LayerNorms, dropouts and block inputs (10) stay whole on every rank."""
    return 10 * s * b * h + ceil_div(24 * s * b * h + 5 * a * s * s * b, t)


@formula("korthikanti-tp-sp", "s·b·h/t·(34 + 5·a·s/h)", _korthikanti("table 2, tensor and sequence parallel"), _GPT_ONLY + _FLASH)
def korthikanti_tp_sp(*, s: int, b: int, h: int, a: int, t: int) -> int:
    """A GPT layer under tensor and sequence parallelism: everything is divided by t."""
    return ceil_div(34 * s * b * h + 5 * a * s * s * b, t)


@formula("korthikanti-selective", "34·s·b·h/t", _korthikanti("table 2, tensor and sequence parallel with selective recomputation"), _GPT_ONLY)
def korthikanti_selective(*, s: int, b: int, h: int, t: int) -> int:
    """A GPT layer with selective recomputation, under tensor and sequence parallelism: the attention scores are computed again."""
    return ceil_div(34 * s * b * h, t)


@formula("korthikanti-selective-tp", "s·b·h·(10 + 24/t)", _korthikanti("table 2, tensor parallel with selective recomputation"), _GPT_ONLY)
def korthikanti_selective_tp(*, s: int, b: int, h: int, t: int) -> int:
    """A GPT layer with selective recomputation under tensor parallelism alone."""
    return 10 * s * b * h + ceil_div(24 * s * b * h, t)


@formula(
    "korthikanti-full",
    "2·s·b·h",
    _korthikanti("table 2, full recomputation"),
    "The layer being computed again lives whole besides: add one layer of korthikanti-none.",
)
def korthikanti_full(*, s: int, b: int, h: int) -> int:
    """A layer with full recomputation: only its 16-bit input is kept."""
    return 2 * s * b * h


@formula(
    "korthikanti-full-tp-sp", "2·s·b·h/t", _korthikanti("section 5: the checkpointed input is split over the tensor-parallel ranks"), "As korthikanti-full."
)
def korthikanti_full_tp_sp(*, s: int, b: int, h: int, t: int) -> int:
    """A layer with full recomputation whose kept input is split over the tensor-parallel ranks."""
    return ceil_div(2 * s * b * h, t)


@formula(
    "korthikanti-first-stage",
    "s·b·h·L/t·(34 + 5·a·s/h)",
    _korthikanti("section 4.2.3"),
    _GPT_ONLY + " Needs at least p micro-batches; other schedules keep more or fewer.",
)
def korthikanti_first_stage(*, s: int, b: int, h: int, a: int, t: int, L: int) -> int:
    """All layers on the first pipeline stage under 1F1B: p micro-batches of L/p layers are L layers, whatever p is."""
    return L * korthikanti_tp_sp(s=s, b=b, h=h, a=a, t=t)


@formula(
    "korthikanti-ends",
    "s·b·h·p/t + 4·s·b·h/t·(1 + V/h)",
    _korthikanti("section 4.3"),
    "The second term is there only without pipeline stages (p = 1): the last stage holds it otherwise.",
)
def korthikanti_ends(*, s: int, b: int, h: int, p: int, t: int, V: int) -> int:
    """Outside the layers: the dropout mask of the embedding for p micro-batches; with one stage also last LayerNorm, head input and fp32 logits."""
    head = 4 * s * b * (h + V) if p == 1 else 0
    return ceil_div(s * b * h * p + head, t)


@formula(
    "microbatches-gpipe",
    "m",
    Citation("Huang et al. 2018, section 2", "https://arxiv.org/abs/1811.06965"),
    "With recomputation only the inputs of the stages are kept.",
    "micro-batches",
)
def microbatches_gpipe(*, m: int) -> int:
    """Micro-batches in flight under GPipe: all of them."""
    return m


_PIPEDREAM = Citation("Narayanan et al. 2021, section 2.2", "https://arxiv.org/abs/2104.04473")


@formula("microbatches-1f1b", "min(m, p - i)", _PIPEDREAM, "The last stage holds one micro-batch, but the logits too.", "micro-batches")
def microbatches_1f1b(*, m: int, p: int, i: int) -> int:
    """Micro-batches in flight on stage i under 1F1B."""
    return min(m, p - i)


@formula(
    "interleaved-first-stage",
    "L·(1 + (p - 1)/(p·v))",
    _korthikanti("section 4.2.3"),
    "Counts layers of one micro-batch on the first stage; needs m >= p.",
    "layers",
)
def interleaved_first_stage(*, L: int, p: int, v: int) -> int:
    """Layer activations alive on the first stage under interleaved 1F1B with v chunks a rank."""
    return ceil_div(L * (p * v + p - 1), p * v)


@formula(
    "attention-scores",
    "e·b·a·s·s",
    Citation("Vaswani et al. 2017, equation 1: one score a head and pair of tokens", "https://arxiv.org/abs/1706.03762"),
    "FlashAttention and SDPA never store them; eager attention keeps several copies. The head size is no factor.",
)
def attention_scores(*, e: int, b: int, a: int, s: int) -> int:
    """One matrix of attention scores of one layer."""
    return e * b * a * s * s


@formula(
    "convolution-activation",
    "e·N·C·H·W",
    Citation("size of a feature map"),
    "Backward needs the input of a convolution, not its output; the output is kept only by what consumes it (normalisation, ReLU).",
)
def convolution_activation(*, e: int, N: int, C: int, H: int, W: int) -> int:
    """A feature map of a convolution network."""
    return e * N * C * H * W
