"""Falcon: one joined projection, one key and value head (7B) or groups (40B, 180B), branches side by side, rotary positions or ALiBi."""

from __future__ import annotations

from everybyte.basics.dtypes import FP32
from everybyte.basics.record import Record
from everybyte.layers.attention.kernels import SCORES, Heads, add_mask, attend, by_head, repeat_kv
from everybyte.layers.blocks.transformer import Block, ParallelBlock
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.common.rope import rotary, table_dtype
from everybyte.layers.network import Embedding, Network
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Dim
from everybyte.layers.recording.tape import Tape, Value
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, tied

PLACES = Places("transformer.word_embeddings", "transformer.h", "transformer.ln_f")


class FalconAttention(Record, frozen=True):
    """modeling_falcon.py FalconAttention. `grouped`: keys and values of a group are copied to all its queries before positions are applied."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    grouped: bool
    bias: bool
    alibi: bool
    dropout: float = 0.0

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        width, narrow = Dim("A", self.hidden), Dim("K", self.kv_heads * self.head_dim)
        joined = linear(t, x, "query_key_value", Dim("(A+2K)", width.size + 2 * narrow.size), bias=self.bias, apart=True)
        t.hold(joined)
        q, k, v = (ops.narrow(t, joined, (x.dims[0], w)) for w in (width, narrow, narrow))
        q, k, v = self._spread(t, q, k, v)
        if not self.alibi:
            q, k = rotary(t, q), rotary(t, k)
        shared = self.heads if self.grouped else self.kv_heads
        sizes = Heads(self.heads, shared, self.head_dim, self.head_dim)
        t.hold(q, k, v)
        t.cache("kv", "key", (sizes.k_width,))
        t.cache("kv", "value", (sizes.v_width,))
        rate = self.dropout if self.alibi else 0.0
        if t.setup.kernels.attention == "eager":
            out = self._eager(t, q, k, v, sizes, rate)
        else:
            out = attend(t, q, k, v, sizes, dropout=rate, broadcast=shared != self.heads, bias=self._mask(t, q))
        return linear(t, out, "dense", Dim("h", self.hidden), bias=self.bias, apart=True)

    def _spread(self, t: Tape, q: Value, k: Value, v: Value) -> tuple[Value, Value, Value]:
        """Indexing with a list copies; groups are then broadcast to their queries and copied, and q with them."""
        if self.kv_heads == self.heads and not self.grouped:
            return q, k, v
        k, v = ops.gather(t, k), ops.gather(t, v)
        if not self.grouped:
            return q, k, v
        if self.kv_heads == 1:
            return q, ops.expand(t, k, q.dims), ops.expand(t, v, q.dims)
        return ops.contiguous(t, q), ops.repeat(t, k, q.dims), ops.repeat(t, v, q.dims)

    def _mask(self, t: Tape, q: Value) -> Value | None:
        """SDPA always gets a mask: a bool one, or ALiBi's for every head, made once for all layers in the type of the hidden states."""
        if t.setup.kernels.attention != "sdpa":
            return None
        if self.alibi:
            return t.from_outside("alibi", (Dim("a", self.heads), SCORES), table_dtype(t, q), grad=False)
        mask = t.new("attention mask", (SCORES,), t.setup.compute or q.dtype, False)
        t.step("mask", (), (mask,))
        return mask

    def _eager(self, t: Tape, q: Value, k: Value, v: Value, sizes: Heads, rate: float) -> Value:
        """Softmax in the type of the hidden states."""
        k = repeat_kv(t, ops.autocast(t, k), sizes.a, sizes.k, sizes.q_width)
        scores = ops.matmul(t, by_head(t, q), by_head(t, k), (Dim("a", self.heads), SCORES))
        if self.alibi:
            t.hold(scores)
            scores = ops.cast(t, scores, FP32)
            t.hold(scores)
            scores = ops.add(t, scores, t.given("alibi", (Dim("a", self.heads), SCORES), scores.dtype))
        scores = ops.scale_(t, scores)
        t.hold(scores)
        weights = ops.softmax(t, add_mask(t, scores), table_dtype(t, q))
        weights = ops.dropout(t, weights, rate)
        v = repeat_kv(t, ops.autocast(t, v), sizes.a, sizes.k, sizes.q_width)
        return ops.contiguous(t, ops.matmul(t, weights, by_head(t, v), q.dims))


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden, vocab = c.integer("hidden_size"), c.integer("vocab_size")
    heads = c.integer("num_attention_heads", "n_head")
    grouped = c.flag("new_decoder_architecture", default=False)
    single = c.flag("multi_query", default=True) and not grouped
    kv_heads = 1 if single else c.integer("num_kv_heads", "n_head_kv", default=heads)
    bias = c.flag("bias", default=False)
    attention = FalconAttention(hidden, heads, kv_heads, hidden // heads, grouped, bias, c.flag("alibi", default=False), c.number("attention_dropout"))
    ffn = c.integer("ffn_hidden_size", default=4 * hidden)
    mlp = PlainMLP(hidden, ffn, c.activation("gelu"), bias, ("dense_h_to_4h", "dense_4h_to_h"), bias_apart=True)
    norm = Norm("layer")
    dropout = c.number("hidden_dropout")
    if grouped or c.flag("parallel_attn", default=True):
        two = c.integer("num_ln_in_parallel_attn", default=2 if grouped else 1) == 2
        names = ("ln_attn", "ln_mlp") if two else ("input_layernorm",)
        block: object = ParallelBlock(attention, mlp, norm, names, mixer_name="self_attention", sum_dropout=dropout, in_place=True)
    else:
        block = Block(attention, mlp, norm, mixer_name="self_attention", dropout=dropout, holds=("in 0", "out 0", "in 1", "out 1"))
    return decoder(c, block, tied=tied(c, default=True), norm=norm, places=PLACES, stem=Embedding(vocab, hidden, PLACES.embed))
