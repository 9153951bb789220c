"""A network as torchtitan builds it: blocks of its own on the share of one tensor-parallel rank, its head with the loss."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.record import Record
from everybyte.catalog.releases import Release
from everybyte.engines.torchtitan.block import FEEDFORWARD, NAMES, Group, TitanBlock, TitanEmbedding
from everybyte.engines.torchtitan.loss import Kind, TitanHead
from everybyte.layers.attention.grouped import Attention, Projections, QkNorm, Rotary
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.experts.moe import MoE
from everybyte.layers.experts.token_choice import TokenChoice
from everybyte.layers.network import Embedding, Network, Run
from everybyte.layers.recording.size import Dim, Dims

PATH = "model"
POSITIONS = {"": 131_072, "head": 40_960}
"""Kind of the norms of queries and keys -> positions of the rotary table, which the model files write for every size (models/llama3/__init__.py
max_seq_len, models/qwen3/__init__.py)."""


class Form(Record, frozen=True):
    """What a job decides about the model's form."""

    release: Release
    group: Group
    compiled: bool
    loss: Kind
    chunks: int
    own_products: int = 0
    """Leading blocks whose products are kernels of their own (NVFP4)."""
    stores_attention: bool = True
    expert_parallel: int = 1


@lru_cache(maxsize=1024)
def rendition(network: Network, form: Form) -> Network:
    """torchtitan's form of a network. Raises Unsupported for one that its model files cannot be."""
    group, release = form.group, form.release
    if network.vocab % group.size:
        raise BadInput("train.mesh.tp", f"{group.size} does not divide the vocabulary of {network.vocab:,}")
    norm = Norm(style="torch" if release.has("fused_norm") else ("wide" if release.has("native_norm") else "llama"))
    dims = group.dims(network.hidden)
    runs: list[Run] = []
    for run in network.runs:
        layer = _block(run.layer, form, norm)
        own = min(max(form.own_products - run.first, 0), run.count)
        parts = ((run.first, own, False), (run.first + own, run.count - own, True))
        runs += [Run("layers", first, count, replace(layer, counts_products=counts), dims) for first, count, counts in parts if count]
    return Network(
        network.name,
        "torchtitan",
        network.hidden,
        network.vocab,
        tuple(runs),
        TitanEmbedding(Embedding(network.vocab // group.size, network.hidden, "tok_embeddings"), group),
        None,
        TitanHead(network.vocab // group.size, norm, group, form.loss, form.chunks, network.tied),
        tied=network.tied,
        dtype=network.dtype,
        max_positions=network.max_positions,
        experts=network.experts,
        top_k=network.top_k,
        head_dims=dims,
    )


def _block(layer: Any, form: Form, norm: Norm) -> TitanBlock:
    """A block of torchtitan with the sizes of another."""
    if not isinstance(layer, Block) or not isinstance(layer.mixer, Attention) or not isinstance(layer.mlp, GatedMLP | MoE) or layer.norm.kind != "rms":
        raise Unsupported(PATH, "torchtitan is supported for decoders like Llama 3, Qwen3 and Llama 4; this model has other blocks")
    mixer, t = layer.mixer, form.group.size
    if mixer.scores.sinks or mixer.gate or mixer.projections.fused or mixer.v_dim not in (0, mixer.head_dim):
        raise Unsupported(PATH, "torchtitan is supported for plain attention; this model's has sinks, gates or joined projections")
    _divides(t, mixer.heads, "query heads")
    _divides(t, mixer.kv_heads, "KV heads")
    attention = Attention(
        mixer.hidden,
        mixer.heads // t,
        mixer.kv_heads // t,
        mixer.head_dim,
        projections=Projections(
            qkv_bias=mixer.projections.qkv_bias, names=NAMES, fused="qkv_linear.wqkv" if form.release.has("fuses_qkv") else "", split=True, copies=True
        ),
        rotary=Rotary(complex=not form.compiled),
        qk_norm=QkNorm(over=mixer.qk_norm.over, style=norm.style),
    )
    table = _rope_table(mixer) if form.release.has("rope_by_layer") else ()
    name = "moe" if isinstance(layer.mlp, MoE) else "feed_forward"
    mlp = _mixture(layer.mlp, form) if isinstance(layer.mlp, MoE) else _feed_forward(layer.mlp, t)
    return TitanBlock(attention, mlp, norm, form.group, form.compiled, name, stores_attention=form.stores_attention, rope_table=table)


def _rope_table(mixer: Attention) -> Dims:
    """fp32 numbers: for each position d/2 complex ones (ComplexRoPE), or cos and sin for all d beside norms of queries and keys (CosSinRoPE)."""
    numbers = Dim("2d", 2 * mixer.head_dim) if mixer.qk_norm.over else Dim("d", mixer.head_dim)
    return Dim("p", POSITIONS.get(mixer.qk_norm.over, POSITIONS[""])), numbers


def _divides(t: int, size: int, what: str) -> None:
    if size % t:
        raise BadInput("train.mesh.tp", f"{t} does not divide the model's {size:,} {what}")


def _feed_forward(mlp: GatedMLP, t: int) -> GatedMLP:
    _divides(t, mlp.ffn, "feed-forward columns")
    return GatedMLP(mlp.hidden, mlp.ffn // t, mlp.activation, names=FEEDFORWARD)


def _mixture(mlp: MoE, form: Form) -> TokenChoice:
    """MoE of torchtitan: whole experts on each rank of an expert-parallel group, every rank's tokens in equal parts."""
    experts, router = mlp.experts, mlp.router
    if form.group.size > 1:
        raise Unsupported("train.mesh.tp", "mixtures of experts under tensor parallelism are not supported for torchtitan yet; supported: expert parallelism")
    if experts.count % form.expert_parallel:
        raise BadInput("train.mesh.ep", f"{form.expert_parallel} does not divide the model's {experts.count} experts")
    first = router.score == "sigmoid" or experts.top_k == 1
    return TokenChoice(
        mlp.hidden,
        experts.ffn,
        experts.count,
        experts.top_k,
        score="sigmoid" if first else "softmax",
        normalize=bool(router.normalize) and not first,
        score_first=first,
        held=experts.count // form.expert_parallel if form.expert_parallel > 1 else 0,
        shared=None if mlp.shared is None else _feed_forward(mlp.shared, 1),
    )
