"""LitGPT's chunked cross entropy, restated in plain PyTorch as litgpt/utils.py writes it: the highest moments on the CPU, but for tensors of single rows."""

from __future__ import annotations

import pytest
import torch
from live_bytes import LiveBytes
from torch.nn import functional as F  # noqa: N812 - its usual name

from everybyte.basics.dtypes import BF16, FP32
from everybyte.engines.litgpt.head import LitLoss
from everybyte.layers.network import write
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.layers.recording.size import TOKENS, Batch, Dim, Point

V = 2000
SMALL = 40_000
"""Targets, losses and sums of single rows, which the account leaves out."""


def entropy(chunks: list[torch.Tensor], targets: list[torch.Tensor]) -> torch.Tensor:
    """The loss over chunks of logits."""
    losses = [
        F.cross_entropy(logits.reshape(-1, V), target.reshape(-1), ignore_index=-100, reduction="none") for logits, target in zip(chunks, targets, strict=True)
    ]
    return torch.cat(losses).mean()


def ours(loss: LitLoss, b: int, s: int) -> tuple[int, int]:
    """(highest moment of backward, bytes that the variable `logits` still holds after it) by our account."""
    setup = Setup(weights=BF16, kernels=Kernels(device="cpu"), single=b == 1)
    tally = write(loss, setup, (TOKENS, Dim("V", V)), FP32, is_last=True).tally
    point = Point(Batch(b, s, s))
    return max(i.size.at(point) for i in tally.backward), tally.lingering_size.at(point)


@pytest.mark.parametrize(("b", "s"), [(1, 300), (2, 300), (2, 256), (3, 100)])
def test_logits_in_chunks(b: int, s: int) -> None:
    """Finetuning with adapters: backward makes two gradients of one chunk beside the logits and the log-probabilities of all."""
    mode = LiveBytes()
    with mode:
        logits = [torch.randn(b, min(128, s - start), V, requires_grad=True) for start in range(0, s, 128)]
        targets = [torch.randint(0, V, chunk.shape[:2]) for chunk in logits]
        loss = entropy(logits, targets)
        mode.reset_peak()
        loss.backward()
    highest, held = ours(LitLoss(V, listed=True), b, s)
    assert abs(mode.peak - highest) < SMALL
    assert held == sum(chunk.nbytes for chunk in logits)


@pytest.mark.parametrize(("b", "s"), [(1, 300), (2, 300), (3, 100)])
def test_whole_logits(b: int, s: int) -> None:
    """Full finetuning: shifted logits are copied, unless there is one sequence, and cut into chunks of rows; their gradients are joined and put
    into zeros of the whole."""
    mode = LiveBytes()
    with mode:
        logits = torch.randn(b, s, V, requires_grad=True)
        flat = logits[..., :-1, :].reshape(-1, V)
        targets = torch.randint(0, V, (flat.shape[0],))
        loss = entropy(list(flat.split(128)), list(targets.split(128)))
        del flat
        mode.reset_peak()
        loss.backward()
    highest, held = ours(LitLoss(V, listed=False), b, s)
    assert abs(mode.peak - highest) < SMALL
    assert held == logits.nbytes
