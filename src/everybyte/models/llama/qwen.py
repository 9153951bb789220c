"""Qwen of the first generation (modeling_qwen.py of Qwen/Qwen-7B): one joined projection with bias, names of GPT-2."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.network import Embedding, Network
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, tied

PLACES = Places("transformer.wte", "transformer.h", "transformer.ln_f")


def build(c: Config) -> Network:
    """The network of a config.json of this family. `intermediate_size` counts gate and up together."""
    hidden, vocab = c.integer("hidden_size"), c.integer("vocab_size")
    heads = c.integer("num_attention_heads")
    head_dim = c.integer("kv_channels", default=hidden // heads)
    bias = not c.flag("no_bias", default=True)
    attention = Attention(
        hidden,
        heads,
        heads,
        head_dim,
        projections=Projections(qkv_bias=True, out_bias=bias, fused="c_attn", split=True, names=("", "", "", "c_proj")),
        dropout=c.number("attn_dropout_prob"),
    )
    mlp = GatedMLP(hidden, c.integer("intermediate_size") // 2, bias=bias, names=("w2", "w1", "c_proj"))
    block = Block(attention, mlp, pre=("ln_1", "ln_2"), mixer_name="attn")
    stem = Embedding(vocab, hidden, PLACES.embed, dropout=c.number("emb_dropout_prob"))
    return decoder(c, block, tied=tied(c, default=False), places=PLACES, stem=stem)
