"""torchtitan's block, its selective recomputing and its losses, restated in plain PyTorch as its files write them, against our account on the CPU."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from live_bytes import LiveBytes
from msgspec.structs import replace
from saved_bytes import kept_by
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from everybyte.basics.dtypes import BF16
from everybyte.engines.torchtitan.block import Group
from everybyte.engines.torchtitan.loss import Kind, TitanHead
from everybyte.engines.torchtitan.network import Form, rendition
from everybyte.engines.torchtitan.release import release_of
from everybyte.engines.torchtitan.train import COMPILED, EAGER
from everybyte.job import InlineModel
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import hidden_dims, write
from everybyte.layers.recording.replay import Recompute, Tally
from everybyte.layers.recording.setup import Setup
from everybyte.layers.recording.size import Batch, Point
from everybyte.models.source import network_of

B, S, H, HEADS, KV, D, F_, V = 2, 32, 64, 8, 2, 8, 160, 512
TOLERANCE = 1024
"""Bytes of counters and scalars."""


class OwnNorm(nn.Module):
    """torchtitan/models/norms.py RMSNorm, until 2025-03."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x̂ is cast back before the product with the weight."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """apply_rotary_emb for one of q and k."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles.view(1, angles.shape[0], 1, -1)).flatten(3).type_as(x)


def spread(x: torch.Tensor) -> torch.Tensor:
    """repeat_kv."""
    b, s, k, d = x.shape
    return x.unsqueeze(3).expand(b, s, k, HEADS // KV, d).reshape(b, s, HEADS, d)


class Block(nn.Module):
    """TransformerBlock with its Attention and FeedForward."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = norm(H), norm(H)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(i, o, bias=False) for i, o in ((H, HEADS * D), (H, KV * D), (H, KV * D), (HEADS * D, H)))
        self.w1, self.w2, self.w3 = nn.Linear(H, F_, bias=False), nn.Linear(F_, H, bias=False), nn.Linear(H, F_, bias=False)
        self.register_buffer("angles", torch.polar(torch.ones(S, D // 2), torch.rand(S, D // 2)))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """Attention.forward."""
        b, s, _ = x.shape
        q, k, v = self.wq(x).view(b, s, -1, D), self.wk(x).view(b, s, -1, D), self.wv(x).view(b, s, -1, D)
        q, k = turned(q, self.angles), turned(k, self.angles)
        k, v = spread(k), spread(v)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().view(b, s, -1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """TransformerBlock.forward."""
        h = x + self.attention(self.attention_norm(x))
        n = self.ffn_norm(h)
        return h + self.w2(F.silu(self.w1(n)) * self.w3(n))


class JoinedBlock(Block):
    """The same with one projection for queries, keys and values (models/common/attention.py FusedQKVLinear)."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__(norm)
        del self.wq, self.wk, self.wv
        self.wqkv = nn.Linear(H, (HEADS + 2 * KV) * D, bias=False)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """GQAttention.forward."""
        b, s, _ = x.shape
        parts = torch.split(self.wqkv(x).view(b, s, KV, HEADS // KV + 2, D), [HEADS // KV, 1, 1], dim=-2)
        q, k, v = (part.reshape(b, s, -1, D).contiguous() for part in parts)
        q, k, v = turned(q, self.angles), spread(turned(k, self.angles)), spread(v)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().view(b, s, -1))


class Model(nn.Module):
    """Transformer up to the last block."""

    def __init__(
        self,
        layers: int,
        norm: Callable[[int], nn.Module],
        wrap: Callable[[nn.Module], Any] = lambda block: block,
        kind: type[Block] = Block,
    ) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(V, H)
        self.blocks = nn.ModuleList(kind(norm) for _ in range(layers))
        self.to(torch.bfloat16)
        for block in self.blocks:
            block.angles = torch.polar(torch.ones(S, D // 2), torch.rand(S, D // 2))
        self.calls = [wrap(block) for block in self.blocks]

    def forward(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        """Hidden states of the last block."""
        x = self.tok_embeddings(input_ids)
        for call in self.calls:
            x = call(x)
        return x


def block(version: str, compiled: bool = False) -> Any:
    """Our block with these sizes at a version."""
    shape = {"family": "llama", "layers": 2, "hidden": H, "ffn": F_, "heads": HEADS, "kv_heads": KV, "head_dim": D, "vocab": V, "norm": "rmsnorm"}
    form = Form(release_of(version), Group(), compiled, "eager", 8)
    return rendition(network_of(InlineModel(shape=shape)), form).runs[0].layer


def account(layer: Any, compiled: bool = False, recompute: Recompute = "none") -> Tally:
    """What our account says of the block on the CPU."""
    setup = Setup(weights=BF16, kernels=replace(COMPILED if compiled else EAGER, device="cpu", repeat_kv=True))
    return write(layer, setup, hidden_dims(H), BF16, recompute).tally


def kept(make: Callable[[int], nn.Module]) -> int:
    """Bytes that one more block keeps for backward."""
    ids, totals = torch.randint(0, V, (B, S)), []
    for layers in (2, 3):
        gc.collect()
        totals.append(sum(size for size, _, _ in kept_by(make(layers).train(), ids, amp=False).values()))
    return totals[1] - totals[0]


@pytest.mark.parametrize(("version", "norm"), [("2024-12", OwnNorm), ("2025-04-10", nn.RMSNorm)])
def test_an_eager_block_keeps_what_pytorch_keeps(version: str, norm: Callable[[int], nn.Module]) -> None:
    """The bytes that one more block saves, with torchtitan's own norm and with torch.nn.RMSNorm, to the byte."""
    assert account(block(version)).kept_size.at(Point(Batch(B, S, S))) == kept(lambda layers: Model(layers, norm))


def test_a_compiled_block_keeps_what_the_partitioner_keeps() -> None:
    """AOT autograd's min-cut partition of the same block (decompositions as inductor uses them, run eagerly)."""
    compile_block = partial(torch.compile, fullgraph=True, backend="aot_eager_decomp_partition")
    ours = account(block("2024-12", compiled=True), compiled=True).kept_size.at(Point(Batch(B, S, S)))
    theirs = kept(lambda layers: Model(layers, OwnNorm, compile_block))
    assert abs(ours - theirs) <= 0.02 * theirs


@pytest.mark.parametrize(("version", "kind"), [("2025-04-10", Block), ("2026-07-01", JoinedBlock)])
def test_a_compiled_block_stores_what_selective_recomputing_names(version: str, kind: type[Block]) -> None:
    """Every second product beginning with the first, attention and the input: with a joined projection that is another half of them, and of the
    last product nothing, as backward needs nothing of it."""

    def contexts() -> Any:
        return create_selective_checkpoint_contexts(policy())  # a new count for every trace of the block

    def wrap(block: nn.Module) -> Any:
        def call(x: torch.Tensor) -> torch.Tensor:
            return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)

        return torch.compile(call, fullgraph=True, backend="aot_eager_decomp_partition")

    ours = account(block(version, compiled=True), compiled=True, recompute="selective").kept_size.at(Point(Batch(B, S, S)))
    theirs = kept(lambda layers: Model(layers, nn.RMSNorm, wrap, kind))
    assert abs(ours - theirs) <= TOLERANCE


def policy() -> Callable[..., CheckpointPolicy]:
    """Every second matrix product and attention are kept (parallelize.py `_get_custom_policy`)."""
    counts = {True: 0, False: 0}

    def choose(ctx: Any, function: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if function == torch.ops.aten.mm.default:
            counts[ctx.is_recompute] += 1
            return CheckpointPolicy.MUST_SAVE if counts[ctx.is_recompute] % 2 else CheckpointPolicy.PREFER_RECOMPUTE
        attention = function == torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        return CheckpointPolicy.MUST_SAVE if attention else CheckpointPolicy.PREFER_RECOMPUTE

    return choose


def test_selective_recomputing_keeps_what_torchs_own_does() -> None:
    """Bytes that live after forward of one block under torch's selective checkpoint: input, every second product (the last included), attention."""
    module = Block(OwnNorm).to(torch.bfloat16)
    module.angles = torch.polar(torch.ones(S, D // 2), torch.rand(S, D // 2))
    x, mode = torch.randn(B, S, H, dtype=torch.bfloat16, requires_grad=True), LiveBytes()
    contexts = partial(create_selective_checkpoint_contexts, policy())
    with mode:
        for tensor in (x, *module.parameters(), module.angles):
            mode.add(tensor)
        before = mode.live
        out = checkpoint(module, x, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
        held = mode.live - before - out.nbytes
    tally, point = account(block("2024-12"), recompute="selective"), Point(Batch(B, S, S))
    assert abs(tally.kept_size.at(point) - x.nbytes - held) < TOLERANCE
    out.float().sum().backward()
    assert x.grad is not None


def vocabulary_parallel(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """torch/distributed/tensor/parallel/loss.py on one rank's columns, forward and backward as its handlers write them."""

    class Entropy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            shifted = x - torch.amax(x, -1, keepdim=True)
            logs = shifted - torch.log(torch.sum(torch.exp(shifted), -1, keepdim=True))
            ctx.save_for_backward(logs)
            return -torch.gather(logs, -1, labels.unsqueeze(-1)).mean()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (logs,) = ctx.saved_tensors
            zeros = torch.zeros_like(logs)
            zeros[torch.arange(len(labels)), labels] = -1.0
            return (zeros + torch.exp(logs)) * gradient

    return Entropy.apply(logits.flatten(0, 1).float())


def chunked(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """components/loss.py chunked_cross_entropy_loss."""
    total: Any = 0.0
    for part, targets in zip(logits.chunk(8, dim=1), labels.view(B, S).chunk(8, dim=1), strict=True):
        total += F.cross_entropy(part.flatten(0, 1).float(), targets.flatten(0, 1))
    return total / 8


def eager(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """cross_entropy_loss."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels)


@pytest.mark.parametrize(("kind", "loss"), [("eager", eager), ("parallel", vocabulary_parallel), ("chunked-logits", chunked)])
def test_losses_peak_where_pytorch_does(kind: Kind, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    """`pred = model(x); loss = loss_fn(pred, labels); del pred; loss.backward()`: the highest moment of head and loss."""
    hidden = torch.randn(B, S, H, dtype=torch.bfloat16, requires_grad=True)
    weight, labels, mode = torch.randn(V, H, dtype=torch.bfloat16, requires_grad=True), torch.randint(0, V, (B * S,)), LiveBytes()
    with mode:
        for tensor in (hidden, weight, labels):
            mode.add(tensor)
        before = mode.live - hidden.nbytes
        logits = F.linear(hidden, weight)
        value = loss(logits, labels)
        del logits
        value.backward()
    head = TitanHead(V, Norm("none"), Group(), kind)
    tally = write(_WithoutNorm(head), Setup(weights=BF16, kernels=EAGER), hidden_dims(H), BF16, is_last=True).tally
    point = Point(Batch(B, S, S))
    ours = max(i.size.at(point) for i in (*tally.forward, *tally.backward))
    assert abs(ours - (mode.peak - before)) <= 0.03 * ours


class _WithoutNorm(nn.Module):
    """The head on hidden states that are normed already."""

    def __init__(self, head: TitanHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, t: Any, x: Any) -> Any:
        """x (n, h) -> the loss."""
        with t.scope("loss"):
            logits = self.head._logits(t, x)
            t.hold(logits)
            return self.head._entropy(t, logits)
