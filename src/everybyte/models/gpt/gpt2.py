"""GPT-2 and GPT-BigCode (SantaCoder, StarCoder): learned positions, one joined projection, plain feed-forward layers, biases everywhere."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections, Scores
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Embedding, Network
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, tied

PLACES = Places("transformer.wte", "transformer.h", "transformer.ln_f")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden, vocab = c.integer("n_embd", "hidden_size"), c.integer("vocab_size")
    heads, _, head_dim = c.heads(hidden)
    big_code = c.architecture == "GPTBigCodeForCausalLM"
    residual = c.number("resid_pdrop", default=0.1)
    attention = Attention(
        hidden,
        heads,
        1 if big_code and c.flag("multi_query", default=True) else heads,
        head_dim,
        projections=Projections(qkv_bias=True, out_bias=True, fused="c_attn", split=True, names=("", "", "", "c_proj")),
        rotary=None,
        scores=Scores(wide_softmax=big_code),
        dropout=c.number("attn_pdrop", default=0.1),
        out_dropout=residual,
    )
    ffn = c.integer("n_inner", "intermediate_size", default=4 * hidden)
    mlp = PlainMLP(hidden, ffn, c.activation("gelu_pytorch_tanh" if big_code else "gelu_new"), names=("c_fc", "c_proj"), dropout=residual)
    norm = Norm("layer")
    block = Block(attention, mlp, norm, ("ln_1", "ln_2"), mixer_name="attn", holds=("out 0", "in 1"))
    positions = c.integer("n_positions", "n_ctx", "max_position_embeddings", default=1024)
    stem = Embedding(vocab, hidden, PLACES.embed, positions, "transformer.wpe", dropout=c.number("embd_pdrop", default=0.1))
    return decoder(c, block, tied=tied(c, default=True), norm=norm, places=PLACES, stem=stem)
