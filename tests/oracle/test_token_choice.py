"""torchtitan's mixture of experts and prime-rl's head and LoRA layer, restated in plain PyTorch as their files write them, against our account on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from live_bytes import LiveBytes
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F  # noqa: N812 - its usual name

from everybyte.basics.dtypes import BF16
from everybyte.layers.common.linear import linear
from everybyte.layers.experts.token_choice import TokenChoice
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import hidden_dims, write
from everybyte.layers.recording.setup import Adapter, Kernels, Setup
from everybyte.layers.recording.size import Batch, Dim, Point

B, S, H, F_, E, TOP, V, R, RUNS = 1, 64, 64, 48, 8, 2, 4096, 8, 4
N = B * S
POINT = Point(Batch(B, S, S))
BALANCED = torch.arange(N * TOP).reshape(N, TOP) % E
"""Every expert has as many tokens."""


class Mixture(nn.Module):
    """models/moe/moe.py MoE with a balanced choice, scores behind the experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(H, E, bias=False)
        self.w1, self.w2, self.w3 = (nn.Parameter(torch.randn(E, o, i) * 0.02) for o, i in ((F_, H), (H, F_), (F_, H)))
        self.to(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """MoE.forward."""
        x = x.view(-1, H)
        scores = F.softmax(self.gate(x).to(torch.float32), dim=1)
        chosen = BALANCED.clone()
        best = scores.gather(1, chosen)
        best = best / (best.sum(dim=-1, keepdim=True) + 1e-20)
        best = best * 1.0
        order = torch.argsort(chosen.view(-1), stable=True)
        ordered, token = best.view(-1)[order], order // TOP
        index = token.reshape(-1, 1).expand(-1, H)
        rows = torch.gather(x, 0, index)
        offsets = torch.cumsum(torch.full((E,), N * TOP // E), 0, dtype=torch.int32)
        h = F.silu(torch._grouped_mm(rows, self.w1.transpose(-2, -1), offs=offsets))
        h = h * torch._grouped_mm(rows, self.w3.transpose(-2, -1), offs=offsets)
        out = torch._grouped_mm(h, self.w2.transpose(-2, -1), offs=offsets)
        out = (out.to(torch.float32) * ordered.reshape(-1, 1)).to(x.dtype)
        return torch.zeros_like(x).scatter_add(0, index, out)


def saved(module: nn.Module, x: torch.Tensor) -> int:
    """Bytes of distinct storages that forward keeps for backward, parameters left out."""
    outside = {p.untyped_storage().data_ptr() for p in module.parameters()} | {x.untyped_storage().data_ptr()}
    found: dict[int, int] = {}
    holds = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in outside:
            found[storage.data_ptr()] = storage.nbytes()
            holds.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        module(x)
    return sum(found.values())


def test_a_mixture_keeps_what_pytorch_keeps() -> None:
    """Router, gathered rows, both branches of the experts, their fp32 results and indices; but for the input, which the block counts."""
    layer = TokenChoice(H, F_, E, TOP)
    tally = write(layer, Setup(weights=BF16, kernels=Kernels(device="cpu")), hidden_dims(H), BF16).tally
    ours = sum(s.size.at(POINT) for s in tally.kept if s is not tally.start)
    theirs = saved(Mixture(), torch.randn(B, S, H, dtype=torch.bfloat16, requires_grad=True))
    assert abs(ours - theirs) <= 0.02 * theirs


class Stacked(nn.Module):
    """layers/lora/multi_linear.py MultiLoRALinear."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(H, F_, bias=False).to(torch.bfloat16).requires_grad_(False)
        self.lora_a = nn.ParameterList(nn.Parameter(torch.randn(R, H, dtype=torch.bfloat16)) for _ in range(RUNS))
        self.lora_b = nn.ParameterList(nn.Parameter(torch.randn(F_, R, dtype=torch.bfloat16)) for _ in range(RUNS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One run has all tokens."""
        tokens = torch.tensor([N] + [0] * (RUNS - 1))
        offsets = tokens.cumsum(0, dtype=torch.int32)
        x = x.view(-1, H)
        base = self.base(x)
        a, b = torch.stack(list(self.lora_a)), torch.stack(list(self.lora_b))
        out = torch._grouped_mm(torch._grouped_mm(x, a.transpose(-2, -1), offs=offsets), b.transpose(-2, -1), offs=offsets)
        return base + torch.repeat_interleave(torch.ones(RUNS, dtype=torch.bfloat16), tokens).unsqueeze(-1) * out


class _Layer(nn.Module):
    def forward(self, t: Any, x: Any) -> Any:
        """x (n, h) -> (n, f)."""
        return linear(t, x, "up_proj", Dim("f", F_))


def test_several_lora_runs_keep_what_pytorch_keeps() -> None:
    """The stacked matrices, the low-rank result and a factor for each token."""
    adapter = Adapter("multi-lora", R, ("up_proj",), BF16, options=(("runs", RUNS),))
    setup = Setup(weights=BF16, trainable=(), adapter=adapter, kernels=Kernels(device="cpu"))
    tally = write(_Layer(), setup, hidden_dims(H), BF16).tally
    ours = sum(s.size.at(POINT) for s in tally.kept if s is not tally.start)
    theirs = saved(Stacked(), torch.randn(B, S, H, dtype=torch.bfloat16, requires_grad=True))
    assert abs(ours - theirs) <= 0.02 * theirs


def test_log_probabilities_need_a_part_of_the_vocabulary_at_a_time() -> None:
    """layers/lm_head.py _ChunkedLogProbEntropyFn, backward: probabilities and gradient of one part of the columns beside the gradients of all."""
    hidden, weight = torch.randn(N, H, dtype=torch.bfloat16), torch.randn(V, H, dtype=torch.bfloat16)
    g, mode, chunk = torch.randn(N), LiveBytes(), 2048
    with mode:
        for tensor in (hidden, weight, g):
            mode.add(tensor)
        before = mode.live
        below, of_weight, logz = torch.zeros_like(hidden), torch.zeros_like(weight), torch.zeros(N)
        for start in range(0, V, chunk):
            part = weight[start : start + chunk]
            logits = hidden @ part.t()
            wide = logits.to(torch.float32).mul_(1.0)
            p = torch.exp(wide - logz.unsqueeze(-1))
            slope = (-g).unsqueeze(-1) * p
            slope.mul_(1.0)
            below.add_(slope.to(torch.bfloat16) @ part)
            of_weight[start : start + chunk].add_(slope.to(torch.bfloat16).t() @ hidden)
        peak = mode.peak - before
    setup = Setup(weights=BF16, kernels=Kernels(loss="log-probabilities"))
    tally = write(Head(H, V, tied=False), setup, hidden_dims(H), BF16, is_last=True).tally
    ours = max(i.size.at(POINT) for i in tally.backward) - hidden.nbytes
    assert abs(ours - peak) <= 0.1 * peak
