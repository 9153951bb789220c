"""The sizes of a network as Megatron Core's TransformerConfig holds them, and how its ranks divide them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from everybyte.basics.errors import Unsupported
from everybyte.basics.record import Record
from everybyte.basics.units import ceil_div
from everybyte.layers.attention.grouped import Attention
from everybyte.layers.attention.mla import MLA
from everybyte.layers.blocks.encoder import Chain, PostNormBlock
from everybyte.layers.blocks.mixer import MixerBlock
from everybyte.layers.blocks.mtp import NextToken
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP, PlainMLP
from everybyte.layers.experts.moe import MoE
from everybyte.layers.network import Network
from everybyte.layers.recording.size import TOKENS, Axis, B, Dim
from everybyte.layers.recurrent.mamba2 import Mamba2

PATH = "model"


@lru_cache(maxsize=64)
def share_of_tokens(tp: int) -> Dim:
    """n/t: every sequence is cut in t parts."""
    return Dim("n/t", 1, (B, Axis("s", 0, (1, tp))))


class Split(Record, frozen=True):
    """The ranks that divide one layer."""

    tp: int = 1
    sp: bool = False
    cp: int = 1
    ep: int = 1
    etp: int = 1

    @property
    def tokens(self) -> Dim:
        """Tokens of the hidden states between layers: n, or n/t with sequence parallelism."""
        return share_of_tokens(self.tp) if self.sp else TOKENS

    @property
    def inside(self) -> Split:
        """As layers see it: context parallelism shortens their sequences and changes nothing else."""
        return Split(self.tp, self.sp, 1, self.ep, self.etp)

    @property
    def at_ends(self) -> Split:
        """As the embedding and the head see it, which have no experts."""
        return Split(self.tp, self.sp, self.cp)

    def routed(self, top_k: int, ranks: int = 1) -> Dim:
        """Balanced tokens that `ranks` ranks' routers send: each of this rank's tokens top_k times, from all of them."""
        return Dim("N", top_k * ranks, self.tokens.axes)


class Heads(Record, frozen=True):
    """Attention with grouped heads. Sizes of the whole layer."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: bool
    bias: bool
    out_bias: bool
    qk_norm: bool = False
    padded: bool = False
    """Tokens see all others but padding (BERT)."""


class Latent(Record, frozen=True):
    """Multi-latent attention. Sizes of the whole layer."""

    heads: int
    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    v_dim: int
    bias: bool = False


class Scan(Record, frozen=True):
    """A Mamba-2 mixer. Sizes of the whole layer."""

    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    chunk: int


class Dense(Record, frozen=True):
    """A feed-forward layer."""

    ffn: int
    activation: str
    gated: bool
    bias: bool


class Mixture(Record, frozen=True):
    """A mixture of experts. Sizes of the whole layer."""

    experts: int
    top_k: int
    expert: Dense
    shared: int = 0
    """Width of the shared expert, 0 for none."""


class Sizes(Record, frozen=True):
    """One layer: a mixer of tokens and a feed-forward layer, or, in hybrid models, one of them."""

    hidden: int
    attention: Heads | Latent | Scan | None
    mlp: Dense | Mixture | None
    norm: str
    """`rms` or `layer`."""

    @property
    def has_experts(self) -> bool:
        """Whether the feed-forward layer is a mixture."""
        return isinstance(self.mlp, Mixture)


@lru_cache(maxsize=64)
def layers_of(network: Network) -> tuple[Sizes, ...]:
    """The sizes of each layer of a network, first to last. Raises Unsupported for a layer that Megatron Core's GPT model has not."""
    found: list[Sizes] = []
    for run in network.runs:
        if isinstance(run.layer, NextToken):
            continue
        found += [sizes_of(run.layer, network.hidden)] * run.count
    return tuple(found)


@lru_cache(maxsize=64)
def prediction_of(network: Network) -> tuple[Sizes, ...]:
    """The layers inside each block of multi-token prediction; none without such blocks."""
    found = next((run.layer for run in network.runs if isinstance(run.layer, NextToken)), None)
    if found is None:
        return ()
    inner = found.block.layers if isinstance(found.block, Chain) else (found.block,)
    return tuple(sizes_of(layer, network.hidden) for layer in inner)


@lru_cache(maxsize=64)
def mixtures_of(network: Network) -> tuple[Mixture, ...]:
    """The kinds of mixtures of experts in a network."""
    every = dict.fromkeys(sizes.mlp for sizes in (*layers_of(network), *prediction_of(network)))
    return tuple(mlp for mlp in every if isinstance(mlp, Mixture))


def sizes_of(layer: Any, hidden: int) -> Sizes:
    """The sizes of a block. Raises Unsupported for one that is no layer of Megatron Core's GPT or BERT model."""
    if isinstance(layer, PostNormBlock):
        a = layer.attention
        return Sizes(hidden, Heads(a.heads, a.heads, a.head_dim, False, True, True, padded=True), Dense(layer.ffn, layer.activation, False, True), "layer")
    if isinstance(layer, MixerBlock) and not layer.wide:
        return _mixed(layer, hidden)
    if not isinstance(layer, Block) or any(layer.post) or any(layer.after) or layer.scaled:
        raise Unsupported(
            PATH, f"its blocks of the kind {type(layer).__name__} are not supported for Megatron-LM yet; supported: those like GPT, Llama and DeepSeek"
        )
    attention = _attention(layer.mixer)
    bias = attention.out_bias if isinstance(attention, Heads) else attention.bias
    return Sizes(hidden, attention, _feed_forward(layer.mlp, bias=bias), layer.norm.kind)


def _mixed(layer: MixerBlock, hidden: int) -> Sizes:
    """A layer of a hybrid model (models/hybrid/hybrid_layer_specs.py)."""
    mixer = layer.mixer
    if isinstance(mixer, Mamba2):
        if mixer.norm != "gate-first" or mixer.bias or mixer.out_bias or not mixer.conv_bias or mixer.scaled:
            raise Unsupported(PATH, "has Mamba-2 layers of a kind that Megatron Core has not: no biases but the convolution's, the gate before the norm")
        scan = Scan(mixer.heads, mixer.head_dim, mixer.groups, mixer.state, mixer.kernel, mixer.chunk)
        return Sizes(hidden, scan, None, layer.norm.kind)
    if isinstance(mixer, MoE | GatedMLP | PlainMLP):
        return Sizes(hidden, None, _feed_forward(mixer, bias=False), layer.norm.kind)
    return Sizes(hidden, _attention(mixer), None, layer.norm.kind)


def _attention(mixer: Any) -> Heads | Latent:
    if isinstance(mixer, MLA):
        return Latent(mixer.heads, mixer.q_rank, mixer.kv_rank, mixer.nope, mixer.rope, mixer.v_dim, mixer.bias)
    if not isinstance(mixer, Attention) or mixer.scores.sinks or mixer.gate or mixer.indexer is not None or mixer.v_dim not in (0, mixer.head_dim):
        raise Unsupported(PATH, f"attention of the kind {type(mixer).__name__} of this model is not supported for Megatron-LM yet")
    return Heads(
        mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.rotary is not None, mixer.projections.qkv_bias, mixer.projections.out_bias, bool(mixer.qk_norm.over)
    )


def _feed_forward(mlp: Any, *, bias: bool) -> Dense | Mixture:
    """`bias`: whether linear layers have one (add_bias_linear), which experts then have too."""
    if isinstance(mlp, MoE):
        experts = mlp.experts
        activation = experts.gate.activation if experts.gate is not None else experts.activation
        expert = Dense(experts.ffn, activation, experts.gate is not None, experts.bias or bias)
        return Mixture(experts.count, experts.top_k, expert, 0 if mlp.shared is None else mlp.shared.ffn)
    if isinstance(mlp, GatedMLP | PlainMLP):
        return Dense(mlp.ffn, mlp.activation, isinstance(mlp, GatedMLP), mlp.bias)
    raise Unsupported(PATH, f"feed-forward layers of the kind {type(mlp).__name__} are not supported for Megatron-LM yet")


def padded(vocab: int, tp: int, divisible_by: int = 128) -> int:
    """Rows of the embedding: the vocabulary, up to a multiple of 128·tp (training/tokenizer/tokenizer.py _vocab_size_with_padding)."""
    multiple = divisible_by * tp
    return ceil_div(vocab, multiple) * multiple


def learned_positions(network: Network) -> int:
    """Rows of the table of learned positions, 0 for none."""
    return int(getattr(network.stem, "positions", 0))
