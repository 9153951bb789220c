"""Weights, gradients and optimizer states: bytes a parameter by recipe."""

from __future__ import annotations

from everybyte.basics.citation import Citation
from everybyte.basics.units import ceil_div
from everybyte.textbook.formula import formula

ADAM = Citation("Kingma and Ba 2014, algorithm 1: a first and a second moment for each parameter", "https://arxiv.org/abs/1412.6980")
MIXED = Citation("Micikevicius et al. 2017, section 3.1: an fp32 master copy of 16-bit weights", "https://arxiv.org/abs/1710.03740")
MEGATRON = Citation("NVIDIA/Megatron-LM d98e8a6 docs/source/api-guide/dist_optimizer.md, table of theoretical bytes a parameter")
BNB = Citation("Dettmers et al. 2021, section 2: 8-bit states in blocks", "https://arxiv.org/abs/2110.02861")
ADAFACTOR = Citation("Shazeer and Stern 2018, algorithm 4: row and column sums instead of the second moment", "https://arxiv.org/abs/1804.04235")
GALORE = Citation("Zhao et al. 2024, table 1: states m·r + 2·n·r for an m x n matrix", "https://arxiv.org/abs/2403.03507")
TORCH = Citation("pytorch 2.13 torch/optim: states are created with zeros_like(parameter)")

_NO_ACTIVATIONS = "Activations, temporaries and buffers come on top; they are not a share of the parameters."


@formula("weights", "e·P", Citation("size of the number format"), "Quantised formats have scales besides, and buffers are no parameters.")
def weights(*, P: int, e: int) -> int:
    """Weights alone: the file on disk, or a model loaded for inference."""
    return e * P


@formula("adam-fp32", "(4 + 4 + 8)·P", ADAM, _NO_ACTIVATIONS)
def adam_fp32(*, P: int) -> int:
    """Adam in fp32: weights 4, gradients 4, two moments 4 + 4."""
    return (4 + 4 + 8) * P


@formula(
    "adam-amp",
    "(4 + 4 + 8)·P",
    MIXED,
    "A 16-bit copy of each linear weight (2 bytes a parameter) lives from its forward to its backward; it belongs to the activations.",
)
def adam_amp(*, P: int) -> int:
    """Adam under autocast: weights, gradients and moments stay fp32; only the computation is 16-bit."""
    return (4 + 4 + 8) * P


@formula("adam-mixed", "(2 + 2 + 4 + 8)·P", MIXED, "Frameworks differ: 18 or 20 with wider gradients, and a transient fp32 gradient inside the step.")
def adam_mixed(*, P: int) -> int:
    """Adam with 16-bit weights and gradients (2 + 2), an fp32 master copy (4) and two fp32 moments (8)."""
    return (2 + 2 + 4 + 8) * P


@formula("adam-mixed-fp32-grads", "(2 + 4 + 4 + 8)·P", MEGATRON, _NO_ACTIVATIONS)
def adam_mixed_fp32_grads(*, P: int) -> int:
    """Megatron bf16: as adam-mixed, with fp32 main gradients (4) in place of 16-bit ones."""
    return (2 + 4 + 4 + 8) * P


@formula("adam-mixed-two-grads", "(2 + 2 + 4 + 4 + 8)·P", MEGATRON, _NO_ACTIVATIONS)
def adam_mixed_two_grads(*, P: int) -> int:
    """Megatron fp16: 16-bit gradients (2) and their fp32 copy (4) besides weights, master copy and moments."""
    return (2 + 2 + 4 + 4 + 8) * P


@formula("adam-pure-16bit", "(2 + 2 + 4)·P", TORCH, "Updates below the precision of bf16 are lost: it saves bytes at the price of accuracy.")
def adam_pure_16bit(*, P: int) -> int:
    """Adam on a 16-bit model without master copy: the moments follow the dtype of the parameter (2 + 2)."""
    return (2 + 2 + 4) * P


@formula("adam-8bit-states", "2·P + 2·4·ceil(P/256)", BNB, "Tensors below 4,096 elements keep fp32 states; master weights, where there are any, stay fp32.")
def adam_8bit_states(*, P: int) -> int:
    """Moments of 8-bit Adam: one byte each, and an fp32 scale for each block of 256."""
    return 2 * P + 2 * 4 * ceil_div(P, 256)


@formula("adam-8bit-mixed", "(2 + 2 + 4)·P + 2·P + 8·ceil(P/256)", BNB, "Without a master copy it is 4 bytes a parameter less.")
def adam_8bit_mixed(*, P: int) -> int:
    """8-bit Adam with 16-bit weights and gradients and an fp32 master copy: 10.03 bytes a parameter; only the moments shrink."""
    return (2 + 2 + 4) * P + adam_8bit_states(P=P)


@formula("sgd-fp32", "(4 + 4)·P", TORCH, _NO_ACTIVATIONS)
def sgd_fp32(*, P: int) -> int:
    """SGD without momentum in fp32: weights and gradients, no state."""
    return (4 + 4) * P


@formula("momentum-fp32", "(4 + 4 + 4)·P", TORCH, _NO_ACTIVATIONS)
def momentum_fp32(*, P: int) -> int:
    """SGD with momentum in fp32, and every optimizer with one state a parameter (Lion, RMSprop, Adagrad)."""
    return (4 + 4 + 4) * P


@formula("adafactor-states", "4·n·(rows + cols)", ADAFACTOR, "Vectors keep a full second moment, and a first moment (beta1 set) adds 4 bytes a parameter.")
def adafactor_states(*, rows: int, cols: int, n: int) -> int:
    """States of Adafactor for n matrices: one fp32 sum a row and a column."""
    return 4 * n * (rows + cols)


@formula(
    "galore-states",
    "4·n·(rows·r + 2·cols·r)",
    GALORE,
    "Written for rows <= cols: the projector belongs to the shorter side. Layers that are not projected keep full Adam.",
)
def galore_states(*, rows: int, cols: int, r: int, n: int) -> int:
    """States of GaLore in fp32 for n matrices: the projector, and two moments of the projected gradient."""
    return 4 * n * (rows * r + 2 * cols * r)


@formula(
    "megatron-distributed-bf16", "(2 + 4)·P + (4 + 8)·P/D", MEGATRON, "Experts are sharded over their own, smaller data-parallel group; buffers are padded."
)
def megatron_distributed_bf16(*, P: int, D: int) -> int:
    """Megatron's distributed optimizer, bf16 with fp32 main gradients: weights and gradients whole, master copy and moments sharded."""
    return (2 + 4) * P + ceil_div((4 + 8) * P, D)


@formula("megatron-distributed-fp16", "(2 + 2)·P + (4 + 4 + 8)·P/D", MEGATRON, "As megatron-distributed-bf16.")
def megatron_distributed_fp16(*, P: int, D: int) -> int:
    """Megatron's distributed optimizer, fp16: the fp32 copy of the gradients is sharded too."""
    return (2 + 2) * P + ceil_div((4 + 4 + 8) * P, D)


@formula("megatron-distributed-fp32", "(4 + 4)·P + 8·P/D", MEGATRON, "As megatron-distributed-bf16.")
def megatron_distributed_fp32(*, P: int, D: int) -> int:
    """Megatron's distributed optimizer in fp32: only the two moments are sharded."""
    return (4 + 4) * P + ceil_div(8 * P, D)
