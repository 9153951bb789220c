"""Llama and the dense decoders that share its block: Mistral, Qwen 2 and 3, Yi, InternLM, MiMo, SmolLM3."""

from __future__ import annotations

from everybyte.layers.attention import Attention
from everybyte.layers.block import Block, FinalNorm, Norm
from everybyte.layers.loss import Head
from everybyte.layers.mlp import GatedMLP
from everybyte.layers.network import Embedding, Network, Run
from everybyte.models.config import Config

QKV_BIAS = {"Qwen2ForCausalLM"}
HEAD_NORM = {"Qwen3ForCausalLM"}


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    bias = c.flag("attention_bias", default=False)
    attention = Attention(
        hidden, heads, kv_heads, head_dim,
        qkv_bias=bias or c.architecture in QKV_BIAS, out_bias=bias and c.architecture not in QKV_BIAS,
        qk_norm="head" if c.architecture in HEAD_NORM else "", dropout=c.number("attention_dropout"),
    )  # fmt: skip
    mlp = GatedMLP(hidden, c.integer("intermediate_size"), c.activation(), bias=c.flag("mlp_bias", default=False))
    tied = c.flag("tie_word_embeddings", default=False)
    return decoder(c, Block(attention, mlp), tied=tied)


def decoder(c: Config, block: object, *, tied: bool, norm: Norm | None = None, runs: tuple[Run, ...] | None = None, scaled: bool = False) -> Network:
    """A decoder with one kind of block (or given `runs`) under the usual names `model.embed_tokens`, `model.layers`, `model.norm`, `lm_head`."""
    hidden, vocab = c.integer("hidden_size"), c.integer("vocab_size")
    return Network(
        c.name, c.model_type, hidden, vocab,
        runs or (Run("model.layers", 0, c.integer("num_hidden_layers"), block),),
        Embedding(vocab, hidden, "model.embed_tokens", scaled=scaled), FinalNorm(norm or Norm(), "model.norm"), Head(hidden, vocab, tied), tied,
        dtype=c.dtype(), max_positions=c.integer("max_position_embeddings", default=0, least=0),
    )  # fmt: skip
