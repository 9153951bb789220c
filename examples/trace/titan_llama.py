"""Llama 3 as torchtitan trains it: FSDP2, selective activation checkpointing, mixed precision, fused AdamW. Nothing here knows of everybyte.

    everybyte trace examples/trace/titan_llama.py:llama_8b --world 8 --alloc-conf expandable_segments:True
    everybyte trace examples/trace/titan_llama.py:llama_70b --world 64 --alloc-conf expandable_segments:True

The model and the wrappers are those of torchtitan in December 2024 (commit 9dec370: torchtitan/models/llama/model.py, parallelisms/parallelize_llama.py,
train.py), written anew.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

aten = torch.ops.aten
SAVED = {
    aten.mm.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}
"""Operations whose results selective checkpointing keeps; of the matrix products every second one."""


@dataclass(frozen=True)
class Settings:
    """A model and how it is trained."""

    width: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 14336
    vocabulary: int = 128256
    batch: int = 2
    length: int = 8192
    recompute: str = "op"
    """`op` (selective), `full` or `none`."""


class RMSNorm(nn.Module):
    """Computes in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotary positions, as products of complex numbers."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles[None, : x.shape[1], None, :]).flatten(3).type_as(x)


def repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    """Each head several times."""
    batch, length, heads, size = x.shape
    return x[:, :, :, None, :].expand(batch, length, heads, times, size).reshape(batch, length, heads * times, size)


class Attention(nn.Module):
    """Keys and values are repeated for each head of the queries."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.size, self.times = s.width // s.heads, s.heads // s.kv_heads
        self.wq = nn.Linear(s.width, s.width, bias=False)
        self.wk = nn.Linear(s.width, s.kv_heads * self.size, bias=False)
        self.wv = nn.Linear(s.width, s.kv_heads * self.size, bias=False)
        self.wo = nn.Linear(s.width, s.width, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        q, k, v = (linear(x).unflatten(-1, (-1, self.size)) for linear in (self.wq, self.wk, self.wv))
        q, k = rotated(q, angles), rotated(k, angles)
        k, v = repeated(k, self.times), repeated(v, self.times)
        out = functional.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().flatten(2))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.w1 = nn.Linear(s.width, s.hidden, bias=False)
        self.w2 = nn.Linear(s.hidden, s.width, bias=False)
        self.w3 = nn.Linear(s.width, s.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """A layer."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(s), FeedForward(s)
        self.attention_norm, self.ffn_norm = RMSNorm(s.width), RMSNorm(s.width)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        h = x + self.attention(self.attention_norm(x), angles)
        return h + self.feed_forward(self.ffn_norm(h))


class Llama(nn.Module):
    """The model."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(s.vocabulary, s.width)
        self.register_buffer("angles", torch.empty(s.length, s.width // s.heads // 2, dtype=torch.complex64))
        self.layers = nn.ModuleDict({str(number): Block(s) for number in range(s.layers)})
        self.norm = RMSNorm(s.width)
        self.output = nn.Linear(s.width, s.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            h = layer(h, self.angles)
        return self.output(self.norm(h))


def every_second_product() -> Any:
    """What selective checkpointing keeps."""
    products: Counter[bool] = Counter()

    def policy(context: Any, operation: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if operation is aten.mm.default:
            products[context.is_recompute] += 1
            if products[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if operation in SAVED else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def checkpointed(block: nn.Module, s: Settings) -> nn.Module:
    """The layer with activation checkpointing."""
    if s.recompute == "none":
        return block
    keeping = {"context_fn": every_second_product} if s.recompute == "op" else {}
    return checkpoint_wrapper(block, preserve_rng_state=False, **keeping)


def sharded(model: Llama, s: Settings) -> Llama:
    """The model with checkpointing and FSDP2 as torchtitan applies them."""
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for name in model.layers:
        model.layers[name] = checkpointed(model.layers[name], s)
        fully_shard(model.layers[name], mesh=mesh, mp_policy=precision, reshard_after_forward=int(name) < s.layers - 1)
    # the root is never resharded after forward: torch did so until 2.7 whatever it was told, and does so if told nothing
    return fully_shard(model, mesh=mesh, mp_policy=precision, reshard_after_forward=False)


def training(s: Settings) -> Callable[[], None]:
    """Builds everything and returns one step."""
    gc.disable()  # torchtitan collects when every rank does, each fifty steps
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.backends.cuda.enable_cudnn_sdp(False)  # opt-in between torch 2.5.1 and 2.8: flash attention ran
    with torch.device("meta"):
        model = Llama(s)
    model = sharded(model, s)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step() -> None:
        batch = torch.randint(0, s.vocabulary, (s.batch, s.length + 1))
        tokens, labels = batch[:, :-1].to("cuda"), batch[:, 1:].to("cuda")
        optimizer.zero_grad()
        prediction = model(tokens)
        loss = functional.cross_entropy(prediction.flatten(0, 1).float(), labels.flatten(0, 1))
        del prediction
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()

    return step


def llama_8b() -> Callable[[], None]:
    """Llama 3.1 8B, two sequences of 8,192 tokens on each GPU."""
    return training(Settings())


def llama_70b() -> Callable[[], None]:
    """Llama 3 70B, one sequence of 8,192 tokens on each GPU."""
    return training(Settings(width=8192, layers=80, heads=64, hidden=28672, batch=1, recompute="full"))
