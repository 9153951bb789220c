"""ZeRO: the states of data-parallel training, partitioned."""

from __future__ import annotations

from everybyte.basics.citation import Citation
from everybyte.basics.units import ceil_div
from everybyte.textbook.formula import formula

ZERO = Citation("Rajbhandari et al. 2019, section 3.1 and table 1", "https://arxiv.org/abs/1910.02054")
DEEPSPEED_2 = Citation("DeepSpeed edaa722 deepspeed/runtime/zero/stage_1_and_2.py, estimate_zero2_model_states_mem_needs")
DEEPSPEED_3 = Citation("DeepSpeed edaa722 deepspeed/runtime/zero/stage3.py, estimate_zero3_model_states_mem_needs")

_BUFFERS = "Reduce and gather buckets (1 GB each with DeepSpeed's 5e8 elements) and the fp32 gradient of the step come on top."


@formula("zero-0", "2·P + 2·P + K·P", ZERO, "K is 12 for Adam with a master copy; other recipes have another K.")
def zero_0(*, P: int, K: int) -> int:
    """Plain data parallelism: 16-bit weights and gradients and K bytes of optimizer state, whole on each rank."""
    return 2 * P + 2 * P + K * P


@formula("zero-1", "2·P + 2·P + K·P/D", ZERO, _BUFFERS)
def zero_1(*, P: int, K: int, D: int) -> int:
    """ZeRO stage 1: optimizer states partitioned over the data-parallel ranks."""
    return 2 * P + 2 * P + ceil_div(K * P, D)


@formula("zero-2", "2·P + (2 + K)·P/D", ZERO, _BUFFERS + " The 16-bit weights stay whole: dividing everything by D is stage 3.")
def zero_2(*, P: int, K: int, D: int) -> int:
    """ZeRO stage 2: gradients and optimizer states partitioned."""
    return 2 * P + ceil_div((2 + K) * P, D)


@formula("zero-3", "(2 + 2 + K)·P/D", ZERO, "The layer being computed, what is prefetched and small persistent parameters are whole: see zero-3-live.")
def zero_3(*, P: int, K: int, D: int) -> int:
    """ZeRO stage 3: weights, gradients and optimizer states partitioned."""
    return ceil_div((2 + 2 + K) * P, D)


@formula(
    "zero-3-live", "(2 + 2 + K)·P/D + 2·live", ZERO, "`live` is bounded by stage3_max_live_parameters (1e9 by default, 2 GB), which small models never reach."
)
def zero_3_live(*, P: int, K: int, D: int, live: int) -> int:
    """ZeRO stage 3 with the parameters gathered at once, in 16 bits."""
    return zero_3(P=P, K=K, D=D) + 2 * live


@formula("deepspeed-zero-2", "2·P + 18·P/D", DEEPSPEED_2, "An upper figure: the fp32 gradient (4 of the 18) lives only inside the step.")
def deepspeed_zero_2(*, P: int, D: int) -> int:
    """DeepSpeed's own estimate of ZeRO-2 without offload: 2 + 4 + 12 bytes partitioned, 16-bit weights whole."""
    return 2 * P + ceil_div(18 * P, D)


@formula("deepspeed-zero-3", "4·largest + 18·P/D", DEEPSPEED_3, "Activations are left out, and the gathered parameters are often more than one layer.")
def deepspeed_zero_3(*, P: int, D: int, largest: int) -> int:
    """DeepSpeed's own estimate of ZeRO-3 without offload: all states partitioned, weights and gradients of the largest layer whole."""
    return 4 * largest + ceil_div(18 * P, D)


@formula(
    "three-d-states",
    "2·P/(t·p) + (2 + K)·P/(t·p·D)",
    ZERO,
    "D is the data-parallel degree, not the number of GPUs: with that, tensor and pipeline parallelism would count twice.",
)
def three_d_states(*, P: int, K: int, t: int, p: int, D: int) -> int:
    """ZeRO-2 inside tensor and pipeline parallelism: each rank holds 1/(t·p) of the model, its states partitioned D ways."""
    return ceil_div(2 * P, t * p) + ceil_div((2 + K) * P, t * p * D)
