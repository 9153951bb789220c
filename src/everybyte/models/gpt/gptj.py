"""GPT-J and CodeGen-like decoders: one norm, attention and feed-forward side by side, rotary positions on part of each head."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections, Rotary, Scores
from everybyte.layers.blocks.transformer import ParallelBlock
from everybyte.layers.common.mlp import PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import Embedding, Network
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, tied

PLACES = Places("transformer.wte", "transformer.h", "transformer.ln_f")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden, vocab = c.integer("n_embd", "hidden_size"), c.integer("vocab_size")
    heads, _, head_dim = c.heads(hidden)
    residual = c.number("resid_pdrop")
    attention = Attention(
        hidden,
        heads,
        heads,
        head_dim,
        projections=Projections(names=("q_proj", "k_proj", "v_proj", "out_proj")),
        rotary=Rotary(dim=c.integer("rotary_dim", default=64), by_token=True, inline=True, tables="call"),
        scores=Scores(wide_products=True),
        dropout=c.number("attn_pdrop"),
        out_dropout=residual,
    )
    ffn = c.integer("n_inner", default=4 * hidden)
    mlp = PlainMLP(hidden, ffn, c.activation("gelu_new"), names=("fc_in", "fc_out"), dropout=residual)
    norm = Norm("layer")
    tie = tied(c, default=False)
    block = ParallelBlock(attention, mlp, norm, ("ln_1",), mixer_name="attn")
    stem = Embedding(vocab, hidden, PLACES.embed, dropout=c.number("embd_pdrop"))
    return decoder(c, block, tied=tie, norm=norm, places=PLACES, stem=stem, head=Head(hidden, vocab, tie, bias=True))
