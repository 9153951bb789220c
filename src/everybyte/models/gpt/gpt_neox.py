"""GPT-NeoX and Pythia: both branches side by side with a norm each, one joined projection, rotary positions on part of each head."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections, Rotary
from everybyte.layers.blocks.transformer import Block, ParallelBlock
from everybyte.layers.common.mlp import PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Embedding, Network
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, rotary_dim, tied

PLACES = Places("gpt_neox.embed_in", "gpt_neox.layers", "gpt_neox.final_layer_norm")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden, vocab = c.integer("hidden_size"), c.integer("vocab_size")
    heads, _, head_dim = c.heads(hidden)
    bias = c.flag("attention_bias", default=True)
    dropout = c.number("hidden_dropout")
    attention = Attention(
        hidden,
        heads,
        heads,
        head_dim,
        projections=Projections(qkv_bias=bias, out_bias=bias, fused="query_key_value", split=True, names=("", "", "", "dense")),
        rotary=Rotary(dim=rotary_dim(c, head_dim, default=0.25)),
        dropout=c.number("attention_dropout"),
    )
    mlp = PlainMLP(hidden, c.integer("intermediate_size"), c.activation("gelu"), names=("dense_h_to_4h", "dense_4h_to_h"))
    norm = Norm("layer")
    kind = ParallelBlock if c.flag("use_parallel_residual", default=True) else Block
    block = kind(attention, mlp, norm, ("input_layernorm", "post_attention_layernorm"), mixer_name="attention", dropout=dropout)
    return decoder(c, block, tied=tied(c, default=False), norm=norm, places=PLACES, stem=Embedding(vocab, hidden, PLACES.embed, dropout=dropout))
