"""Losses of torchtune on the CPU: the highest instants of forward and backward against real PyTorch."""

from __future__ import annotations

import pytest
import torch
from live_bytes import LiveBytes
from torch.nn.functional import cross_entropy, linear

from everybyte.basics.dtypes import BF16
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import hidden_dims, write
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.layers.recording.size import Batch, Point

B, S, H, V, CHUNKS = 2, 64, 16, 4096, 8


def chunked(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """CEWithChunkedOutputLoss behind TransformerDecoder.chunked_output, as torchtune writes them."""
    logits = [linear(chunk, weight) for chunk in x.chunk(CHUNKS, dim=1)]
    total = torch.zeros((), dtype=torch.float32)
    for part, target in zip(logits, labels.chunk(CHUNKS, dim=1), strict=True):
        total = total + cross_entropy(part.reshape(-1, V).float(), target.reshape(-1), reduction="sum")
    return total


def whole(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The model returns logits.float() and the loop drops them before backward."""
    return cross_entropy(linear(x, weight).float().reshape(-1, V), labels.reshape(-1))


def measured(loss, trains_head: bool) -> tuple[int, int]:  # type: ignore[no-untyped-def]
    """Peaks of forward and backward above what lives before; the hidden states are leaves, so their gradient stays."""
    torch.manual_seed(0)
    x = torch.randn(B, S, H, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(V, H, dtype=torch.bfloat16, requires_grad=trains_head)
    labels = torch.randint(0, V, (B, S))
    live = LiveBytes()
    with live:
        for tensor in (x, weight, labels):
            live.add(tensor)
        before = live.live
        live.reset_peak()
        out = loss(x, weight, labels)
        forward = live.peak - before
        live.reset_peak()
        out.backward()
        return forward, live.peak - before


def predicted(kind: str, trains_head: bool) -> tuple[int, int]:
    """The same by our account, without the hidden states themselves."""
    setup = Setup(weights=BF16, trainable=("*",) if trains_head else (), kernels=Kernels(loss=kind, device="cpu", chunks=CHUNKS))
    tally = write(Head(H, V, tied=False), setup, hidden_dims(H), BF16, is_last=True).tally
    point = Point(Batch(B, S, S))
    hidden = 2 * B * S * H
    return max(i.size.at(point) for i in tally.forward) - hidden, max(i.size.at(point) for i in tally.backward) - hidden


@pytest.mark.parametrize("trains_head", [True, False], ids=["trained", "frozen"])
@pytest.mark.parametrize(("kind", "loss"), [("chunked", chunked), ("upcast-output", whole)], ids=["chunked", "whole"])
def test_peaks_of_the_loss(kind: str, loss, trains_head: bool) -> None:  # type: ignore[no-untyped-def]
    """All chunks' logits live together, their cross entropies run backward before any product of the head, and the head's weight has one
    gradient to which each chunk's is added."""
    nv = B * S * V
    for ours, real in zip(predicted(kind, trains_head), measured(loss, trains_head), strict=True):
        assert abs(ours - real) < 0.05 * nv, (ours / nv, real / nv)
