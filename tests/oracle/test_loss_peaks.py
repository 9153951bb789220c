"""Bytes that live while the loss of a language model is worked out, forward and backward, against PyTorch on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from live_bytes import LiveBytes
from torch.nn import functional as F  # noqa: N812 - its usual name
from transformers.loss.loss_utils import ForCausalLMLoss

from everybyte.basics.dtypes import BF16, FP32
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import hidden_dims, write
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.layers.recording.size import Batch, Point

B, S, H, V = 2, 48, 24, 4000
N = B * S
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def today(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """transformers from 4.50: labels are shifted, logits are not."""
    return ForCausalLMLoss(logits, labels, V)


def shifted(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """transformers 4.46 to 4.49, loss/loss_utils.py: a copy without the last position; the caller holds the 16-bit logits."""
    wide = logits.float()
    moved = wide[..., :-1, :].contiguous()
    return F.cross_entropy(moved.view(-1, V), labels[..., 1:].reshape(-1))


def rebound(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """transformers before 4.46, modeling_llama.py: `logits = logits.float()` gives the 16-bit logits back."""
    logits = F.linear(hidden, weight)
    logits = logits.float()
    moved = logits[..., :-1, :].contiguous()
    return F.cross_entropy(moved.view(-1, V), labels[..., 1:].reshape(-1))


def real(loss: str, amp: bool) -> tuple[int, int, int]:
    """(peak of forward, alive after it, peak of backward), less what was there before."""
    torch.manual_seed(0)
    dtype = torch.float32 if amp else torch.bfloat16
    hidden = torch.randn(B, S, H, dtype=dtype, requires_grad=True)
    weight = torch.randn(V, H, dtype=dtype, requires_grad=True)
    labels = torch.randint(0, V, (B, S))
    mode = LiveBytes()
    with mode:
        for tensor in (hidden, weight, labels):
            mode.add(tensor)
        before = mode.live
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
            held = None
            if loss == "hf-rebound":
                out = rebound(hidden, weight, labels)
            else:
                held = F.linear(hidden, weight)
                out = (shifted if loss == "hf-shifted" else today)(held, labels)
                if loss != "hf-outputs-alive":
                    held = None
        forward, kept = mode.peak - before, mode.live - before
        mode.reset_peak()
        out.backward()
        backward = mode.peak - before
    assert held is None or held.numel() == N * V
    return forward, kept, backward


def ours(loss: str, amp: bool) -> tuple[int, int, int]:
    """The same by our account."""
    stream = FP32 if amp else BF16
    setup = Setup(weights=stream, compute=BF16 if amp else None, kernels=Kernels(device="cpu", loss=loss))
    tally = write(Head(H, V, tied=False), setup, hidden_dims(H), stream, is_last=True).tally
    point = Point(Batch(B, S, S))
    given = N * H * (4 if amp else 2)
    forward = max(instant.size.at(point) for instant in tally.forward)
    backward = max(instant.size.at(point) for instant in tally.backward)
    return forward - given, tally.kept_size.at(point) - (given if not amp else 0), backward - (given if not amp else 0)


MULTIPLES = {"hf": (10, 4, 12), "hf-outputs-alive": (10, 6, 14), "hf-shifted": (14, 4, 12), "hf-rebound": (12, 4, 12)}
"""Bytes in units of n·V: peak of forward, kept, peak of backward."""


@pytest.mark.parametrize("amp", [False, True], ids=["bf16", "autocast"])
@pytest.mark.parametrize("loss", MULTIPLES)
def test_loss_peaks(loss: str, amp: bool) -> None:
    """Each form of the loss peaks where PyTorch does, but for labels and row sums (less than 64 bytes a token)."""
    for mine, theirs in zip(ours(loss, amp), real(loss, amp), strict=True):
        assert abs(mine - theirs) <= 64 * N


@pytest.mark.parametrize(("loss", "expected"), MULTIPLES.items())
def test_loss_multiples(loss: str, expected: tuple[int, int, int]) -> None:
    """In bf16 the peaks are the known multiples of n·V, but for the head's weight, the hidden states, and the position that shifting cuts off."""
    small = 2 * V * H * 2 + 4 * N * H * 2 + 64 * N
    for mine, multiple in zip(ours(loss, amp=False), expected, strict=True):
        assert multiple * (N - B) * V <= mine <= multiple * N * V + small
