"""Bytes that live while log-probabilities are worked out, forward and backward, against trl's own operations on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from live_bytes import LiveBytes
from torch.nn import functional as F  # noqa: N812 - its usual name

from everybyte.basics.dtypes import BF16, FP32
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import hidden_dims, write
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.layers.recording.size import Batch, Point

B, S, H, V = 4, 48, 24, 4000
N = B * S
SCORED = 17
"""Tokens of a sequence that the head runs on, where that is not all."""


def selective_log_softmax(logits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """trl 0.24 trainer/utils.py, operation by operation."""
    if logits.dtype == torch.float32:
        chosen = torch.gather(logits, dim=-1, index=index.unsqueeze(-1)).squeeze(-1)
        return chosen - torch.stack([torch.logsumexp(row, dim=-1) for row in logits])
    found = []
    for row, labels in zip(logits, index, strict=True):
        found.append(F.log_softmax(row, dim=-1).gather(dim=-1, index=labels.unsqueeze(-1)).squeeze(-1))
    return torch.stack(found)


class InPlace(LiveBytes):
    """gather_backward adds in place unless a dispatch mode looks on (torch/csrc/autograd/FunctionsManual.cpp): here it does again."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.scatter_add.default:
            return args[0].scatter_add_(*args[1:])
        return super().__torch_dispatch__(function, types, args, kwargs)


class Loss:
    """What a trainer's function does between the hidden states and the loss; `held` are its variables that are alive when it returns it."""

    def __init__(self, form: str, kept: int) -> None:
        self.form, self.kept, self.held = form, kept, ()

    def __call__(self, hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, amp: bool) -> torch.Tensor:
        """The sum of the log-probabilities of `ids`."""
        logits = F.linear(hidden if self.kept == S or self.form == "logps-pinned" else hidden[:, -self.kept :, :], weight)
        if amp:
            logits = logits.float()
        if self.form == "logps-rolled":
            return selective_log_softmax(logits, ids[:, -self.kept :]).sum()
        if self.form == "logps-scaled":
            logits = logits[:, :-1, :]
            logits = logits / 0.9
            return selective_log_softmax(logits, ids[:, -self.kept + 1 :]).sum()
        if self.form == "logps-pinned":
            self.through = logits
            answer = logits[:, -self.kept : -1]
            answer /= 0.9
            return selective_log_softmax(answer, ids[:, -self.kept + 1 :]).sum()
        if self.form == "logps-copied":
            moved = logits[..., :-1, :].contiguous()
            self.held = (logits, moved)
            return selective_log_softmax(moved, ids[:, -self.kept + 1 :]).sum()
        cut, labels = logits[:, :-1, :], ids[:, -self.kept + 1 :]
        scores = selective_log_softmax(cut, labels).sum()
        if self.form == "logps-sliced":
            return scores
        chosen = cut[: B // 2].contiguous()
        return scores + F.cross_entropy(chosen.view(-1, V), labels[: B // 2].reshape(-1))


class Chunked(torch.autograd.Function):
    """trl 1.16 kernels/chunked_logprob.py ChunkedLogProbFunction on a GPU: every tensor that it makes, without what the Triton kernels do to a tile."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, compute: torch.dtype) -> torch.Tensor:
        """One log-probability a token, computed in `compute`."""
        tile = torch.empty(min(len(hidden), 4096), min(V, 32768), dtype=compute)
        part = hidden[:4096].to(compute)
        torch.mm(part, weight.to(compute).t(), out=tile)
        sums = torch.zeros(len(hidden))
        ctx.save_for_backward(hidden, weight, sums, torch.zeros(len(hidden)))
        ctx.compute = compute
        return torch.zeros(len(hidden))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of hidden states and weight, added up in fp32."""
        hidden, weight, _, _ = ctx.saved_tensors
        wide, wide_weight = torch.zeros(hidden.shape), torch.zeros(weight.shape)
        tile = torch.empty(min(len(hidden), 4096), min(V, 32768), dtype=ctx.compute)
        part, columns = hidden[:4096].to(ctx.compute), weight.to(ctx.compute)
        torch.mm(part, columns.t(), out=tile)
        return wide.to(hidden.dtype), wide_weight.to(weight.dtype), None


def fused(hidden: torch.Tensor, weight: torch.Tensor, kept: int, amp: bool) -> torch.Tensor:
    """trl 1.16 trainer/utils.py _fused_forward: the hidden states of labelled tokens alone."""
    mask = torch.zeros(B, S - 1, dtype=torch.bool)
    mask[:, -(kept - 1) :] = True
    out: torch.Tensor = Chunked.apply(hidden[:, :-1][mask], weight, torch.bfloat16 if amp else hidden.dtype)
    return out.sum()


def real(form: str, kept: int, amp: bool, grad: bool) -> tuple[int, ...]:
    """(peak of forward, alive after it, peak of backward), less what was there before; without gradients the first alone."""
    torch.manual_seed(0)
    dtype = torch.float32 if amp else torch.bfloat16
    hidden = torch.randn(B, S, H, dtype=dtype, requires_grad=grad)
    weight = torch.randn(V, H, dtype=dtype, requires_grad=grad)
    ids = torch.randint(0, V, (B, S))
    loss, mode = Loss(form, kept), InPlace()
    with mode:
        for tensor in (hidden, weight, ids):
            mode.add(tensor)
        before = mode.live
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp), torch.set_grad_enabled(grad):
            out = fused(hidden, weight, kept, amp) if form == "logps-fused" else loss(hidden, weight, ids, amp)
        forward = mode.peak - before
        if not grad:
            return (forward,)
        loss.held = ()
        alive = mode.live - before
        mode.reset_peak()
        out.backward()
        return forward, alive, mode.peak - before


def ours(form: str, kept: int, amp: bool, grad: bool) -> tuple[int, ...]:
    """The same by our account."""
    stream = FP32 if amp else BF16
    scored = (1, 1) if kept == S else (kept, S)
    setup = Setup(weights=stream, compute=BF16 if amp else None, grad=grad, kernels=Kernels(device="cpu", loss=form, rows=B, scored=scored))
    tally = write(Head(H, V, tied=False), setup, hidden_dims(H), stream, is_last=True).tally
    point = Point(Batch(B, S, S))
    given = N * H * (4 if amp else 2)
    forward = max(instant.size.at(point) for instant in tally.forward) - given
    if not grad:
        return (forward,)
    kept_given = 0 if amp or (kept != S and form != "logps-pinned") else given
    backward = max(instant.size.at(point) for instant in tally.backward)
    return forward, tally.kept_size.at(point) - kept_given, backward - kept_given


@pytest.mark.parametrize("grad", [True, False], ids=["policy", "reference"])
@pytest.mark.parametrize("kept", [S, SCORED], ids=["all", "completion"])
@pytest.mark.parametrize("amp", [False, True], ids=["bf16", "autocast"])
@pytest.mark.parametrize("form", ["logps-rolled", "logps-sliced", "logps-copied", "logps-scaled", "logps-pinned", "logps-and-entropy", "logps-fused"])
def test_log_prob_peaks(form: str, amp: bool, kept: int, grad: bool) -> None:
    """Each form peaks where PyTorch does, but for labels and row sums (less than 64 bytes a token) and, in forward, for what logsumexp makes
    inside itself, one sequence of fp32 logits, which the tensors of Python do not show."""
    found = list(zip(ours(form, kept, amp, grad), real(form, kept, amp, grad), strict=True))
    inside = kept * V * 4 if amp and form in ("logps-copied", "logps-and-entropy") else 0
    for index, (mine, theirs) in enumerate(found):
        assert -64 * N <= mine - theirs <= 64 * N + (inside if index == 0 else 0)
