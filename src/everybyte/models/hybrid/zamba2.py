"""Zamba2: Mamba-2 layers, before some of them one of few shared transformer blocks with adapters of each layer's own (modeling_zamba2.py)."""

from __future__ import annotations

from typing import Any

from everybyte.basics.errors import BadInput
from everybyte.layers.attention.grouped import Attention, Rotary
from everybyte.layers.blocks.mixer import MixerBlock
from everybyte.layers.blocks.shared import AdaptedAttention, AdaptedMLP, CopiedEmbedding, SharedBlock, Users, users_of
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Embedding, Network
from everybyte.layers.recurrent.mamba2 import Mamba2
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, tied
from everybyte.models.patterns import kinds

PLACES = Places(norm="model.final_layernorm")
KINDS = ("mamba", "linear_attention", "hybrid")
USUAL = (6, 12, 18, 24, 30, 36, 42, 47, 51)
"""Layers with a shared block where the file names none (configuration_zamba2.py)."""


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden, mamba, hybrid = c.integer("hidden_size"), _mamba(c), _hybrid(c)
    sets = c.integer("num_mem_blocks", default=1)
    plain = MixerBlock(mamba, Norm(), name="mamba", norm_name="input_layernorm")
    users = iter(users_of(sum(hybrid), sets, c.integer("adapter_rank", default=128)))
    layers: list[Any] = [_shared(c, mamba, next(users)) if shared else plain for shared in hybrid]
    stem = CopiedEmbedding(Embedding(c.integer("vocab_size"), hidden, PLACES.embed))
    return decoder(c, layers=layers, tied=tied(c, default=True), places=PLACES, stem=stem)


def _hybrid(c: Config) -> list[bool]:
    """Which layers have a shared block."""
    key = "layers_block_type" if c.has("layers_block_type") else "layer_types"
    if c.has(key):
        words = c.texts(key)
        return [word == "hybrid" for word in kinds(c, key, c.integer("num_hidden_layers", default=len(words)), KINDS, words)]
    chosen = c.integers("hybrid_layer_ids", USUAL)
    return [index in chosen for index in range(c.integer("num_hidden_layers", default=54))]


def _mamba(c: Config) -> Mamba2:
    hidden = c.integer("hidden_size")
    inner, heads = c.integer("mamba_expand", default=2) * hidden, c.integer("n_mamba_heads", default=8)
    if inner % heads:
        raise BadInput(f"{c.path}.n_mamba_heads", f"must divide mamba_expand·hidden_size ({inner}), and {heads} does not")
    bias = c.flag("add_bias_linear", default=False)
    return Mamba2(
        hidden,
        heads,
        inner // heads,
        c.integer("mamba_ngroups", default=1),
        c.integer("mamba_d_state", default=64),
        c.integer("mamba_d_conv", default=4),
        c.integer("chunk_size", default=256),
        bias=bias,
        out_bias=bias,
    )


def _shared(c: Config, mamba: Mamba2, users: Users) -> SharedBlock:
    """The layer with a shared block. Attention is twice as wide as the hidden states: it reads the embedding beside them."""
    hidden = c.integer("hidden_size")
    heads = c.integer("num_attention_heads", default=32)
    c.divides("num_attention_heads", heads, 2 * hidden)
    sizes = (hidden, heads, c.integer("num_key_value_heads", default=heads), 2 * hidden // heads)
    rotary, dropout = Rotary() if c.flag("use_mem_rope", default=False) else None, c.number("attention_dropout")
    attention = Attention(*sizes, rotary=rotary, dropout=dropout)
    if c.flag("use_shared_attention_adapter", default=False):
        attention = AdaptedAttention(*sizes, rotary=rotary, dropout=dropout, users=users)
    ffn = c.integer("intermediate_size", default=4 * hidden)
    return SharedBlock(attention, AdaptedMLP(hidden, ffn, users, c.activation("gelu"), c.flag("add_bias_linear", default=False)), mamba)
