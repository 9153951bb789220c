"""Mixtral's experts as transformers wrote them before 5 keep for backward, and need at the most, what our account of the loop says."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from allocations import Ones, peak_of
from hybrids import config_of
from module_bytes import difference, module_keeps
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from everybyte.basics.dtypes import BF16
from everybyte.layers.experts import routed as experts
from everybyte.layers.network import hidden_dims, write
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.layers.recording.size import Batch, Point
from everybyte.models.registry import build

H, FFN = 48, 64


class Expert(nn.Module):
    """transformers 4.46, modeling_mixtral.py MixtralBlockSparseTop2MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(H, FFN, bias=False), nn.Linear(FFN, H, bias=False), nn.Linear(H, FFN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (r, h) -> (r, h)."""
        current = F.silu(self.w1(x)) * self.w3(x)
        return self.w2(current)


class Experts(nn.Module):
    """transformers 4.46, modeling_mixtral.py MixtralSparseMoeBlock. The router's logits are given, so that every expert gets as many tokens."""

    def __init__(self, count: int, top_k: int) -> None:
        super().__init__()
        self.count, self.top_k = count, top_k
        self.gate = nn.Linear(H, count, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (b, s, h) -> (b, s, h)."""
        shape = x.shape
        x = x.view(-1, H)
        logits = self.gate(x)
        weights = F.softmax(logits, dim=1, dtype=torch.float)
        weights, selected = torch.topk(weights, self.top_k, dim=-1)
        weights /= weights.sum(dim=-1, keepdim=True)
        selected = (torch.arange(len(x) * self.top_k) % self.count).view(-1, self.top_k) + 0 * selected
        weights = weights.to(x.dtype)
        final = torch.zeros(x.shape, dtype=x.dtype)
        mask = F.one_hot(selected, num_classes=self.count).permute(2, 1, 0)
        for index in range(self.count):
            expert = self.experts[index]
            place, token = torch.where(mask[index])
            state = x[None, token].reshape(-1, H)
            state = expert(state) * weights[token, place, None]
            final.index_add_(0, token, state.to(x.dtype))
        return final.reshape(shape)


@pytest.mark.parametrize(("count", "top_k"), [(4, 2), (8, 1), (6, 3)])
@pytest.mark.parametrize(("b", "s"), [(2, 24), (1, 48), (3, 40)])
def test_the_old_loop(b: int, s: int, count: int, top_k: int) -> None:
    """Tensors of each size that autograd keeps, and both peaks nearly."""
    torch.manual_seed(0)
    module = Experts(count, top_k).to(torch.bfloat16)
    x = torch.randn(b, s, H, dtype=torch.bfloat16, requires_grad=True).clone()
    measured = module_keeps(module, lambda: module(x), outside=(x,))
    config = config_of("mixtral", 1, num_local_experts=count, num_experts_per_tok=top_k)
    layer = build({**config.to_dict(), "architectures": config.architectures}).runs[0].layer.mlp
    setup = Setup(weights=BF16, kernels=Kernels(device="cpu", experts="loop"), single=b == 1)
    tally = write(layer, setup, hidden_dims(H), BF16).tally
    point = Point(Batch(b, s, s))
    kept = [storage.size.at(point) for storage in tally.kept if storage is not tally.start]
    given = tally.start.size.at(point)
    assert sum(kept) == sum(size * times for size, times in measured.items()), difference(measured, type(measured)(kept))
    for counted in (False, True):
        up, out = peak_of(partial(module, x))
        loss = Ones.apply(out)
        down, _ = peak_of(loss.backward, up.left - out.numel() * out.element_size())
        if not counted:
            module.zero_grad(set_to_none=True)
            x = x.detach().clone().requires_grad_().clone()
    assert max(i.size.at(point) for i in tally.forward) - given == pytest.approx(up.highest, rel=0.03)
    assert max(i.size.at(point) for i in tally.backward) - given == pytest.approx(down.highest, rel=0.03)


@pytest.mark.parametrize("name", ["mixtral", "step-3.7"])
def test_experts_that_are_taken_together_cost_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop over very many experts is accounted for several at a time: kept bytes, peaks and gradients are those of one at a time."""
    counts = {"num_local_experts" if name == "mixtral" else "n_routed_experts": 96, "num_experts_per_tok": 4}
    config = config_of(name, 1, **counts)
    layer = build({**config.to_dict(), "architectures": config.architectures}).runs[0].layer
    setup = Setup(weights=BF16, kernels=Kernels(experts="loop"))
    point = Point(Batch(2, 48, 48))
    found = []
    for many in (experts.MANY, 1000):
        monkeypatch.setattr(experts, "MANY", many)
        tally = write(layer, setup, hidden_dims(H), BF16).tally
        highest = [max(instant.size.at(point) for instant in instants) for instants in (tally.forward, tally.backward)]
        found.append((tally.kept_size.at(point), *highest, tally.weight_gradients.at(point)))
    assert found[0][0] == found[1][0]
    assert found[0][3] == found[1][3]
    assert found[0][1:3] == pytest.approx(found[1][1:3], rel=0.01)
