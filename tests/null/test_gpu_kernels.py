"""What kernels that run on GPUs alone keep and make, by hand: no oracle on the CPU sees them."""

from __future__ import annotations

from typing import Any

from everybyte.basics.dtypes import BF16
from everybyte.layers.attention.grouped import Attention
from everybyte.layers.common.norm import Norm
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import hidden_dims, write
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.layers.recording.size import Batch, Point
from everybyte.layers.recording.tape import Tape, Value

B, S, H, A, V = 2, 32, 64, 4, 96
N = B * S
POINT = Point(Batch(B, S, S))


class Normed:
    """A norm as a layer."""

    def forward(self, t: Tape, x: Value) -> Value:
        """The norm of x."""
        return Norm().forward(t, x, "norm")


def tally(layer: Any, device: str = "cuda", **kernels: Any) -> Any:
    """The account of a layer in bf16."""
    setup = Setup(weights=BF16, kernels=Kernels(device=device, **kernels))  # type: ignore[arg-type]  # one of two words
    return write(layer, setup, hidden_dims(H), BF16).tally


def kept(layer: Any, **kernels: Any) -> list[int]:
    """Bytes of each tensor that a layer keeps, the smallest first."""
    return sorted(storage.size.at(POINT) for storage in tally(layer, **kernels).kept)


def test_a_fused_norm_keeps_its_input_and_a_number_a_row() -> None:
    """The statistic is of 32 bits whatever the input's type (Liger-Kernel ops/rms_norm.py RSTD)."""
    assert kept(Normed(), norm="fused") == [4 * N, 2 * N * H]


def test_flash_attentions_backward_sums_in_fp32() -> None:
    """On a GPU it has an fp32 accumulator of the queries' gradient and a number a row and head beside the CPU's (mha_bwd: dq_accum, softmax_d)."""
    layer = Attention(H, A, A, H // A, rotary=None)
    highest = {device: max(instant.size.at(POINT) for instant in tally(layer, device).backward) for device in ("cpu", "cuda")}
    assert highest["cuda"] - highest["cpu"] == 4 * N * H + 4 * N * A


def test_a_fused_loss_keeps_gradients_instead_of_logits() -> None:
    """Liger's fused linear cross entropy makes the gradients of its input and of the head's weight in forward, and keeps both."""
    assert kept(Head(H, V, tied=False), loss="fused-linear") == sorted([2 * N * H, 2 * V * H])
