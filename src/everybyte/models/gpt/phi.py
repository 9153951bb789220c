"""Phi 1 and 2: one norm, both branches side by side, biases everywhere, rotary positions on part of each head."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections, QkNorm, Rotary
from everybyte.layers.blocks.transformer import ParallelBlock
from everybyte.layers.common.mlp import PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import Embedding, Network
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, rotary_dim, tied

PLACES = Places(norm="model.final_layernorm")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden, vocab = c.integer("hidden_size"), c.integer("vocab_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=True, out_bias=True, names=("q_proj", "k_proj", "v_proj", "dense")),
        rotary=Rotary(dim=rotary_dim(c, head_dim, default=0.5), inline=True),
        qk_norm=QkNorm(over="head", kind="layer", names=("q_layernorm", "k_layernorm")) if c.flag("qk_layernorm", default=False) else QkNorm(),
        dropout=c.number("attention_dropout"),
    )
    mlp = PlainMLP(hidden, c.integer("intermediate_size", default=4 * hidden), c.activation("gelu_new"))
    norm = Norm("layer")
    tie = tied(c, default=False)
    stem = Embedding(vocab, hidden, PLACES.embed, dropout=c.number("embd_pdrop"))
    block = ParallelBlock(attention, mlp, norm, dropout=c.number("resid_pdrop"))
    return decoder(c, block, tied=tie, norm=norm, places=PLACES, stem=stem, head=Head(hidden, vocab, tie, bias=True))
