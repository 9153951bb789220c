"""Indexers of sparse attention: small heads that score every key and pick the ones to look at. Nothing of it reaches the loss: indexers are
written under `Tape.silence` and keep nothing."""

from __future__ import annotations

from everybyte.basics.dtypes import FP32, INT32, INT64
from everybyte.basics.record import Record
from everybyte.layers.attention.kernels import SCORES
from everybyte.layers.common.linear import linear
from everybyte.layers.common.norm import layer_norm, rms_norm
from everybyte.layers.common.rope import rotary
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import KEY_TOKENS, Dim, Dims
from everybyte.layers.recording.tape import Tape, Value


class Indexer(Record, frozen=True):
    """DeepSeek-V3.2's lightning indexer (modeling_deepseek_v32.py): queries from the latent, one key a token, a weight a head."""

    heads: int
    head_dim: int
    top_k: int
    rope: int
    """How many numbers of a head turn."""

    def forward(self, t: Tape, x: Value, latent: Value) -> Value:
        """x (n, h), latent (n, r_q) -> positions of the chosen keys (n, top_k)."""
        width, one = Dim("H·d_i", self.heads * self.head_dim), Dim("d_i", self.head_dim)
        q = self._turned(t, linear(t, latent, "wq_b", width), self.heads)
        k = self._turned(t, layer_norm(t, linear(t, x, "wk", one), "k_norm"), 1)
        t.hold(q, k)
        t.cache("kv", "index key", (one,))
        heads = Dim("H", self.heads)
        q, k = ops.cast(t, q, FP32), ops.cast(t, k, FP32)
        scores = ops.matmul(t, q, spread(t, k, (SCORES, one)), (SCORES, heads))
        t.drop(q, k)
        scores = ops.scale(t, scores)
        scores = ops.unary(t, "relu", scores, keeps="nothing")
        weights = ops.scale(t, ops.cast(t, linear(t, x, "weights_proj", heads), FP32))
        summed = ops.matmul(t, weights, scores, (SCORES,))
        return chosen(t, ops.unary(t, "add mask", summed, keeps="nothing"), x, self.top_k)

    def _turned(self, t: Tape, x: Value, heads: int) -> Value:
        part = rotary(t, ops.narrow(t, x, (x.dims[0], Dim("H·d_r", heads * self.rope))))
        t.hold(x, part)
        return ops.cat(t, (part, x), x.dims)


class BlockIndexer(Record, frozen=True):
    """MiniMax-M3's indexer (modeling_minimax_m3_vl.py): normed queries and one key a token; scores are pooled over blocks of keys."""

    heads: int
    head_dim: int
    top_k: int
    """Blocks that are looked at."""
    block: int

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> positions of the chosen blocks (n, heads·top_k)."""
        heads, one = Dim("H", self.heads), Dim("d_i", self.head_dim)
        q = ops.view(linear(t, x, "q_proj", Dim("H·d_i", self.heads * self.head_dim)), (x.dims[0], heads, one))
        q = _all_turned(t, rms_norm(t, q, "q_norm", style="gemma"))
        k = _all_turned(t, rms_norm(t, linear(t, x, "k_proj", one), "k_norm", style="gemma"))
        t.cache("kv", "index key", (one,))
        t.hold(q, k)
        q, k = ops.cast(t, q, FP32), ops.cast(t, k, FP32)
        scores = ops.matmul(t, q, spread(t, k, (KEY_TOKENS, heads, one)), (SCORES, heads))
        t.drop(q, k)
        scores = ops.unary(t, "masked_fill", scores, keeps="nothing")
        return chosen(t, scores, x, self.heads * self.top_k)


def spread(t: Tape, k: Value, dims: Dims) -> Value:
    """Keys that a batched product is given without the dimension it broadcasts them over: copied out, unless there is one sequence."""
    if t.setup.single:
        return k
    out = t.new("expand", dims, k.dtype, False)
    t.step("expand", (k,), (out,))
    return out


def chosen(t: Tape, scores: Value, x: Value, top_k: int) -> Value:
    """Positions of the highest scores, found as int64 and stored as int32."""
    dims = (x.dims[0], Dim("top", top_k))
    values, positions = t.new("topk", dims, scores.dtype, False), t.new("topk positions", dims, INT64, False)
    t.step("topk", (scores,), (values, positions))
    return ops.cast(t, positions, INT32)


def _all_turned(t: Tape, x: Value) -> Value:
    """Positions turn a part of each head; the parts are joined again."""
    return ops.cat(t, (rotary(t, x),), x.dims)
