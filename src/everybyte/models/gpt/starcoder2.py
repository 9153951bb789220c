"""StarCoder2: LayerNorm, biases everywhere, a plain feed-forward layer, grouped heads, rotary positions."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Embedding, Network
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, tied, window


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden, vocab = c.integer("hidden_size"), c.integer("vocab_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    bias = c.flag("use_bias", default=True)
    dropout = c.number("residual_dropout")
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=bias, out_bias=bias),
        window=window(c),
        dropout=c.number("attention_dropout"),
        out_dropout=dropout,
    )
    mlp = PlainMLP(hidden, c.integer("intermediate_size"), c.activation("gelu_pytorch_tanh"), bias, ("c_fc", "c_proj"), dropout)
    norm = Norm("layer")
    stem = Embedding(vocab, hidden, Places().embed, dropout=c.number("embedding_dropout"))
    return decoder(c, Block(attention, mlp, norm), tied=tied(c, default=True), norm=norm, stem=stem)
