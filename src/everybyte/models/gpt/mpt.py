"""MPT: ALiBi in fp32 added to the scores, one joined projection, norms and projections without biases."""

from __future__ import annotations

from everybyte.basics.dtypes import BOOL, FP32
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.record import Record
from everybyte.layers.attention.kernels import SCORES, Heads, by_head, repeat_kv
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Embedding, Network
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import KEY_TOKENS, Dim
from everybyte.layers.recording.tape import Tape, Value
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, tied

PLACES = Places("transformer.wte", "transformer.blocks", "transformer.norm_f")


class MptAttention(Record, frozen=True):
    """modeling_mpt.py MptAttention: eager whatever kernel is asked for. Fewer key heads than query heads are those of llm-foundry's own class."""

    hidden: int
    heads: int
    kv_heads: int
    positions: int
    """Positions that the model's ALiBi is made for."""
    clip: bool = False
    bias: bool = False
    dropout: float = 0.0

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        width = self.hidden // self.heads
        sizes = Heads(self.heads, self.kv_heads, width, width)
        widths = (sizes.q_width, sizes.k_width, sizes.v_width)
        joined = linear(t, x, "Wqkv", Dim("(A+2K)", sum(w.size for w in widths)), bias=self.bias)
        if self.clip:
            joined = ops.unary(t, "clamp", joined, keeps="input")
        q, k, v = ops.split(t, joined, [(x.dims[0], w) for w in widths])
        t.cache("kv", "key", (sizes.k_width,))
        t.cache("kv", "value", (sizes.v_width,))
        k, v = (repeat_kv(t, y, sizes.a, sizes.k, sizes.q_width) for y in (k, v))
        t.hold(joined, k, v)
        scores = self._scores(t, q, k)
        t.hold(scores)
        weights = ops.cast(t, ops.softmax(t, scores, FP32), v.dtype)
        weights = ops.dropout(t, weights, self.dropout)
        t.hold(weights)
        out = ops.contiguous(t, ops.matmul(t, weights, by_head(t, v), q.dims))
        return linear(t, out, "out_proj", Dim("h", self.hidden), bias=self.bias)

    def _scores(self, t: Tape, q: Value, k: Value) -> Value:
        """Scaled products plus ALiBi, which has one row for all queries and is fp32, so that the sum is; then the future is filled in."""
        heads = Dim("a", self.heads)
        scores = ops.scale(t, ops.matmul(t, by_head(t, q), by_head(t, k), (heads, SCORES)))
        t.share("alibi", (heads, Dim("p", self.positions)), FP32)
        scores = ops.add(t, scores, t.given("alibi", (heads, KEY_TOKENS), FP32))
        t.share("attention mask", (SCORES,), BOOL)
        return ops.unary(t, "masked_fill", scores, keeps="nothing")


def build(c: Config) -> Network:
    """The network of a config.json of this family. Raises Unsupported for learned positions and norms of queries and keys."""
    hidden, vocab = c.integer("d_model", "hidden_size"), c.integer("vocab_size")
    heads, layers = c.integer("n_heads", "num_attention_heads"), c.integer("n_layers", "num_hidden_layers")
    c.divides("n_heads", heads, hidden)
    inner = c.part("attn_config")
    kv_heads = _kv_heads(inner, heads)
    for key, usual in (("alibi", True), ("qk_ln", False)):
        if inner.flag(key, usual) != usual:
            raise Unsupported(f"{inner.path}.{key}", f"{str(not usual).lower()} is not supported; the published MPT models have {str(usual).lower()}")
    # transformers' class has no biases; llm-foundry's follows the file
    bias = c.architecture.startswith("MPT") and not c.flag("no_bias", default=True)
    dropout = inner.number("attn_pdrop")
    norm = Norm("layer", bias=bias)
    attention = MptAttention(hidden, heads, kv_heads, c.integer("max_seq_len", default=2048), inner.number("clip_qkv") != 0, bias, dropout)
    mlp = PlainMLP(hidden, c.integer("expansion_ratio", default=4) * hidden, bias=bias, names=("up_proj", "down_proj"))
    block = Block(
        attention,
        mlp,
        norm,
        pre=("norm_1", "norm_2"),
        mixer_name="attn",
        mlp_name="ffn",
        dropout=dropout,
        holds=("out 0", "in 1"),
    )
    tie = tied(c, default=True)
    return decoder(c, layers=[block] * layers, tied=tie, norm=norm, places=PLACES, stem=Embedding(vocab, hidden, PLACES.embed))


def _kv_heads(inner: Config, heads: int) -> int:
    """Key and value heads by the type of attention (llm-foundry attention.py). Raises BadInput for another type."""
    kind = inner.text("attn_type", default="multihead_attention")
    known = {"multihead_attention": heads, "multiquery_attention": 1, "grouped_query_attention": inner.integer("kv_n_heads", default=heads)}
    if kind not in known:
        raise BadInput(f"{inner.path}.attn_type", f"unknown type of attention {kind!r}; known: {', '.join(known)}")
    inner.divides("kv_n_heads", known[kind], heads)
    return known[kind]
