"""Nomic BERT: an encoder with rotary positions, a gated feed-forward layer, and a norm behind each branch (modeling_nomic_bert.py)."""

from __future__ import annotations

from everybyte.basics.errors import Unsupported
from everybyte.layers.attention.grouped import Attention, Projections, Scores
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Embedding, Network, Run
from everybyte.models.config import Config

GATES = {"swiglu": "silu", "geglu": "gelu"}
"""`activation_function` of the published files -> what the gate goes through."""


def build(c: Config) -> Network:
    """The network of a config.json of this family, under transformers' names of the sizes or those of the published files (GPT-2's).

    Raises Unsupported for experts and for feed-forward layers without a gate.
    """
    hidden, vocab = c.integer("hidden_size", "n_embd"), c.integer("vocab_size", default=30528)
    heads, _, head_dim = c.heads(hidden)
    positions = c.integer("max_position_embeddings", "n_positions", default=2048)
    dropout = c.number("hidden_dropout_prob", "resid_pdrop")
    attention = Attention(
        hidden,
        heads,
        heads,
        head_dim,
        projections=Projections(qkv_bias=c.flag("qkv_proj_bias", default=False), out_bias=c.flag("qkv_proj_bias", default=False)),
        scores=Scores(wide_softmax=False),
        dropout=c.number("attention_probs_dropout_prob", "attn_pdrop"),
        cached=False,
        causal=False,
    )
    mlp = GatedMLP(hidden, c.integer("intermediate_size", "n_inner", default=4 * hidden), _activation(c), c.flag("mlp_fc1_bias", default=False))
    block = Block(attention, mlp, Norm("layer"), pre=("", ""), after=("post_attention_layernorm", "post_mlp_layernorm"), dropout=dropout)
    stem = Embedding(
        vocab,
        hidden,
        "embeddings.word_embeddings",
        types=c.integer("type_vocab_size", default=2),
        type_leaf="embeddings.token_type_embeddings",
        norm="embeddings.LayerNorm",
        dropout=c.number("hidden_dropout_prob", "embd_pdrop"),
    )
    runs = (Run("layers", 0, c.integer("num_hidden_layers", "n_layer"), block),)
    return Network(c.name, c.model_type, hidden, vocab, runs, stem, None, None, dtype=c.dtype(), max_positions=positions)


def _activation(c: Config) -> str:
    """What the gate goes through."""
    if c.integer("num_experts", default=0, least=0) or c.integer("moe_every_n_layers", default=0, least=0):
        raise Unsupported(f"{c.path}.moe_every_n_layers", "experts in Nomic BERT (v2) are not supported; the dense models (v1, v1.5) are")
    word = c.text("activation_function", default="swiglu")
    if word not in GATES:
        raise Unsupported(f"{c.path}.activation_function", f"{word!r} is not supported; supported: {', '.join(GATES)}")
    return c.activation("silu", "hidden_act") if c.has("hidden_act") else GATES[word]
