"""OPT: learned positions behind two reserved ones, ReLU, norms before the branches, or behind the sums (350m)."""

from __future__ import annotations

from everybyte.basics.record import Record
from everybyte.layers.attention.grouped import Attention, Projections, Scores
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import Embedding, Network, hidden_dims
from everybyte.layers.recording.size import Dim
from everybyte.layers.recording.tape import Tape, Value
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, tied

PLACES = Places("model.decoder.embed_tokens", "model.decoder.layers", "model.decoder.final_layer_norm")


class Tail(Record, frozen=True):
    """The final norm, where there is one, and the projection to the width of the embedding, where that differs."""

    norm: Norm | None
    width: int
    """0: no projection."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, w)."""
        if self.norm is not None:
            x = self.norm.forward(t, x, PLACES.norm)
        return linear(t, x, "model.decoder.project_out", Dim("w", self.width)) if self.width else x


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden, vocab = c.integer("hidden_size"), c.integer("vocab_size")
    heads, _, head_dim = c.heads(hidden)
    bias = c.flag("enable_bias", default=True)
    attention = Attention(
        hidden,
        heads,
        heads,
        head_dim,
        projections=Projections(qkv_bias=bias, out_bias=bias, names=("q_proj", "k_proj", "v_proj", "out_proj")),
        rotary=None,
        scores=Scores(scaled_query=True),
        dropout=c.number("attention_dropout"),
    )
    mlp = PlainMLP(hidden, c.integer("ffn_dim"), c.activation("relu"), bias)
    norm = Norm("layer", affine=c.flag("layer_norm_elementwise_affine", default=True))
    before = c.flag("do_layer_norm_before", default=True)
    names = ("self_attn_layer_norm", "final_layer_norm")
    block = Block(
        attention, mlp, norm, names if before else ("", ""), after=("", "") if before else names, mlp_name="", dropout=c.number("dropout", default=0.1)
    )
    width = c.integer("word_embed_proj_dim", default=hidden)
    narrow = width if width != hidden else 0
    tie = tied(c, default=True)
    stem = Embedding(
        vocab,
        hidden,
        PLACES.embed,
        c.integer("max_position_embeddings", default=2048) + 2,
        "model.decoder.embed_positions",
        positions_by_sequence=True,
        project_from=narrow,
        project_leaf="model.decoder.project_in",
    )
    tail = Tail(norm if before and not c.flag("_remove_final_layer_norm", default=False) else None, narrow)
    return decoder(c, block, tied=tie, places=PLACES, stem=stem, tail=tail, head=Head(width, vocab, tie), head_dims=hidden_dims(width) if narrow else ())
