"""BLOOM: ALiBi added inside the scores' product, one joined projection, its own GELU, a norm behind the embedding."""

from __future__ import annotations

from everybyte.basics.dtypes import FP32
from everybyte.basics.errors import Unsupported
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

PLACES = Places("transformer.word_embeddings", "transformer.h", "transformer.ln_f")


class BloomAttention(Record, frozen=True):
    """modeling_bloom.py BloomAttention: eager whatever kernel is asked for."""

    hidden: int
    heads: int
    dropout: float = 0.0

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        width = Dim("A", self.hidden)
        joined = linear(t, x, "query_key_value", Dim("3A", 3 * self.hidden), bias=True)
        t.hold(joined)
        q, k, v = (by_head(t, ops.narrow(t, joined, (x.dims[0], width))) for _ in range(3))
        t.cache("kv", "key", (width,))
        t.cache("kv", "value", (width,))
        scores = ops.matmul(t, q, k, (Dim("a", self.heads), SCORES))
        masked = add_mask(t, scores)
        t.hold(scores, masked)
        weights = ops.cast(t, ops.softmax(t, masked, FP32), q.dtype)
        weights = ops.dropout(t, weights, self.dropout)
        out = ops.contiguous(t, ops.matmul(t, weights, v, (x.dims[0], width)))
        return linear(t, out, "dense", Dim("h", self.hidden), bias=True)


def build(c: Config) -> Network:
    """The network of a config.json of this family. Raises Unsupported where the residual is the norm's result."""
    if c.flag("apply_residual_connection_post_layernorm", default=False):
        raise Unsupported(f"{c.path}.apply_residual_connection_post_layernorm", "true is not supported; the published BLOOM models have false")
    hidden, vocab = c.integer("hidden_size", "n_embed"), c.integer("vocab_size")
    heads = c.integer("n_head", "num_attention_heads")
    norm = Norm("layer")
    mlp = PlainMLP(hidden, 4 * hidden, "gelu_bloom", names=("dense_h_to_4h", "dense_4h_to_h"))
    attention = BloomAttention(hidden, heads, c.number("attention_dropout"))
    block = Block(attention, mlp, norm, mixer_name="self_attention", dropout=c.number("hidden_dropout"))
    stem = Embedding(vocab, hidden, PLACES.embed, norm="transformer.word_embeddings_layernorm")
    return decoder(c, block, tied=tied(c, default=True), norm=norm, places=PLACES, stem=stem)
