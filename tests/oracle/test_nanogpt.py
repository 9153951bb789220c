"""nanoGPT's block and loss, restated in plain PyTorch as model.py writes them, against our account of them on the CPU, to the byte."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from live_bytes import LiveBytes
from saved_bytes import kept_by
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from everybyte.basics.dtypes import BF16, FP32
from everybyte.engines.nanogpt.model import rendition
from everybyte.job import InlineModel
from everybyte.layers.network import Network, hidden_dims, write
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.layers.recording.size import Batch, Point
from everybyte.models.source import network_of

B, S, H, HEADS, V = 2, 48, 96, 6, 1000


class Block(nn.Module):
    """model.py Block with its CausalSelfAttention and MLP."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(H, bias=bias), nn.LayerNorm(H, bias=bias)
        self.c_attn, self.attn_proj = nn.Linear(H, 3 * H, bias=bias), nn.Linear(H, H, bias=bias)
        self.c_fc, self.mlp_proj = nn.Linear(H, 4 * H, bias=bias), nn.Linear(4 * H, H, bias=bias)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """CausalSelfAttention.forward without dropout."""
        b, t, c = x.size()
        q, k, v = (part.view(b, t, HEADS, c // HEADS).transpose(1, 2) for part in self.c_attn(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True)
        return self.attn_proj(y.transpose(1, 2).contiguous().view(b, t, c))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Block.forward."""
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x))))


class Model(nn.Module):
    """model.py GPT without its loss."""

    def __init__(self, layers: int, bias: bool) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, H), nn.Embedding(64, H)
        self.blocks = nn.ModuleList(Block(bias) for _ in range(layers))

    def forward(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        """GPT.forward up to the last block."""
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return x


def network(bias: bool = True) -> Network:
    """A GPT-2 of these sizes in nanoGPT's form."""
    shape = {
        "family": "gpt",
        "layers": 2,
        "hidden": H,
        "ffn": 4 * H,
        "heads": HEADS,
        "vocab": V,
        "max_positions": 64,
        "bias": bias,
    }
    return rendition(network_of(InlineModel(shape=shape)))


@pytest.mark.parametrize("amp", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_block_keeps_what_pytorch_keeps(amp: bool, bias: bool) -> None:
    """The bytes that one more block saves for backward, with and without biases, in fp32 and under autocast."""
    ids, totals = torch.randint(0, V, (B, S)), []
    for layers in (2, 3):
        gc.collect()
        totals.append(sum(size for size, _, _ in kept_by(Model(layers, bias).train(), ids, amp).values()))
    setup = Setup(weights=FP32, compute=BF16 if amp else None, kernels=Kernels(device="cpu"), dropout=0.0)
    tally = write(network(bias).runs[0].layer, setup, hidden_dims(H), FP32).tally
    assert tally.kept_size.at(Point(Batch(B, S, S))) == totals[1] - totals[0]


def test_the_loss_peaks_where_pytorch_does() -> None:
    """`logits, loss = model(X, Y); loss.backward()` in a loop: the highest moment of backward of head and cross entropy, and what the variable
    `logits` still holds after it."""
    hidden, weight = torch.randn(B, S, H, requires_grad=True), torch.randn(V, H, requires_grad=True)
    targets, mode = torch.randint(0, V, (B * S,)), LiveBytes()
    with mode:
        for tensor in (hidden, weight, targets):
            mode.add(tensor)
        before = mode.live
        logits = F.linear(hidden, weight)
        loss = F.cross_entropy(logits.view(-1, V), targets)
        mode.reset_peak()
        loss.backward()
        peak = mode.peak - before
        held = mode.live - before - hidden.grad.nbytes - weight.grad.nbytes  # type: ignore[union-attr]
    assert logits.shape == (B, S, V)
    tally = write(network().head, Setup(weights=FP32, kernels=Kernels(device="cpu")), hidden_dims(H), FP32, is_last=True).tally
    point = Point(Batch(B, S, S))
    given = B * S * H * 4
    assert abs(max(i.size.at(point) for i in tally.backward) - given - peak) < 1024
    assert abs(tally.lingering_size.at(point) - held) < 1024
