"""GPT-Neo: attention in fp32 without scaling. Local layers mask more scores, but keep the whole past in their cache."""

from __future__ import annotations

from everybyte.basics.dtypes import FP32
from everybyte.basics.record import Record
from everybyte.layers.attention.kernels import SCORES, add_mask, by_head
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Embedding, Network
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Dim
from everybyte.layers.recording.tape import Tape, Value
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, tied

PLACES = Places("transformer.wte", "transformer.h", "transformer.ln_f")


class NeoAttention(Record, frozen=True):
    """modeling_gpt_neo.py GPTNeoSelfAttention: the same whatever kernel is asked for."""

    hidden: int
    heads: int
    dropout: float = 0.0
    out_dropout: float = 0.0

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        with t.scope("attention"):
            return self._attend(t, x)

    def _attend(self, t: Tape, x: Value) -> Value:
        width = Dim("A", self.hidden)
        q, k, v = (linear(t, x, name, width) for name in ("q_proj", "k_proj", "v_proj"))
        t.cache("kv", "key", (width,))
        t.cache("kv", "value", (width,))
        t.hold(q, k, v)
        q, k = ops.cast(t, q, FP32), ops.cast(t, k, FP32)
        t.hold(q, k)
        scores = ops.matmul(t, by_head(t, q), by_head(t, k), (Dim("a", self.heads), SCORES))
        scores = ops.unary(t, "where", scores, keeps="nothing")
        weights = ops.cast(t, ops.softmax(t, add_mask(t, scores)), v.dtype)
        weights = ops.dropout(t, weights, self.dropout)
        out = ops.contiguous(t, ops.matmul(t, weights, by_head(t, v), (x.dims[0], width)))
        out = linear(t, out, "out_proj", Dim("h", self.hidden), bias=True)
        return ops.dropout(t, out, self.out_dropout)


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden, vocab = c.integer("hidden_size"), c.integer("vocab_size")
    heads = c.integer("num_heads", "num_attention_heads")
    residual = c.number("resid_dropout")
    attention = NeoAttention(hidden, heads, c.number("attention_dropout"), residual)
    mlp = PlainMLP(hidden, c.integer("intermediate_size", default=4 * hidden), c.activation("gelu_new"), names=("c_fc", "c_proj"), dropout=residual)
    norm = Norm("layer")
    block = Block(attention, mlp, norm, ("ln_1", "ln_2"), mixer_name="attn", holds=("out 0", "in 1"))
    positions = c.integer("max_position_embeddings", default=2048)
    stem = Embedding(vocab, hidden, PLACES.embed, positions, "transformer.wpe", dropout=c.number("embed_dropout"))
    return decoder(c, block, tied=tied(c, default=True), norm=norm, places=PLACES, stem=stem)
