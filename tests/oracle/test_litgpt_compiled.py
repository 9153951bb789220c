"""A compiled block of LitGPT, restated in plain PyTorch as litgpt/model.py writes it, against what AOT autograd's partitioner keeps of it."""

from __future__ import annotations

import gc
from typing import Any

import torch
from saved_bytes import kept_by
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from everybyte.basics.dtypes import BF16
from everybyte.catalog.releases import newest
from everybyte.engines.litgpt.network import Script, rendition
from everybyte.job import InlineModel
from everybyte.layers.network import hidden_dims, write
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.layers.recording.size import Batch, Point
from everybyte.models.source import network_of

B, S, H, HEADS, FFN, V = 2, 64, 64, 4, 160, 300
D = H // HEADS
COPY = 2 * B * S * H
"""bf16."""


class Norm(nn.Module):
    """RMSNorm in fp32; the product with the weight too."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(H))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (b, s, h) -> the same."""
        wide = x.float()
        return (wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + 1e-5) * self.weight.float()).to(x.dtype)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """apply_rope."""
    half = x.size(-1) // 2
    return (x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin).to(x.dtype)


class Block(nn.Module):
    """Attention, then the gated feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = Norm(), Norm()
        self.qkv, self.proj = nn.Linear(H, 3 * H, bias=False), nn.Linear(H, H, bias=False)
        self.fc_1, self.fc_2, self.down = nn.Linear(H, FFN, bias=False), nn.Linear(H, FFN, bias=False), nn.Linear(FFN, H, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """x (b, s, h) -> the same."""
        b, s, _ = x.shape
        q, k, v = (part.view(b, s, HEADS, D).transpose(1, 2) for part in self.qkv(self.norm_1(x)).split(H, dim=-1))
        out = F.scaled_dot_product_attention(turned(q, cos, sin), turned(k, cos, sin), v, is_causal=True)
        x = self.proj(out.transpose(1, 2).reshape(b, s, H)) + x
        normed = self.norm_2(x)
        return self.down(F.silu(self.fc_1(normed)) * self.fc_2(normed)) + x


class Model(nn.Module):
    """Embedding and blocks."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, H)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.to(torch.bfloat16)
        self.tables = (torch.rand(S, D), torch.rand(S, D))

    def forward(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        """Hidden states of the last block."""
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = torch.compile(block, fullgraph=True, backend="aot_eager_decomp_partition")(x, *self.tables)
        return x


def test_a_compiled_block_keeps_what_the_partitioner_keeps() -> None:
    """One more block: results that a matrix product or attention reads, and no others. On the GPU attention's result lies head by head, as its queries do,
    and is copied before the projection; the CPU's kernel writes it token by token."""
    ids, totals = torch.randint(0, V, (B, S)), []
    for layers in (1, 2):
        gc.collect()
        totals.append(sum(size for size, _, _ in kept_by(Model(layers).train(), ids, amp=False).values()))
    shape = {"family": "llama", "layers": 2, "hidden": H, "ffn": FFN, "heads": HEADS, "kv_heads": HEADS, "head_dim": D, "vocab": V, "norm": "rmsnorm"}
    form = rendition(network_of(InlineModel(shape=shape)), Script(newest("litgpt"), 0, 0, compiled=True))
    setup = Setup(weights=BF16, kernels=Kernels(device="cpu"))
    ours = write(form.runs[0].layer, setup, hidden_dims(H), BF16, "none").tally.kept_size.at(Point(Batch(B, S, S)))
    assert ours - COPY == totals[1] - totals[0]
