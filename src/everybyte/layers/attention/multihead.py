"""Attention of encoders and of cross-attention: equal heads, no rotary positions, keys and values from the same tokens or from an encoder."""

from __future__ import annotations

from everybyte.basics.dtypes import BOOL, INT64
from everybyte.basics.record import Record
from everybyte.layers.attention.kernels import SCORES, Heads, attend
from everybyte.layers.common.linear import linear
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import KEYS, MEMORY, MEMORY_TOKENS, QUERIES, B, Dim, M, S, Size
from everybyte.layers.recording.tape import Made, Tape, Value

CROSS_SCORES = Dim("b·s·m", 1, (B, S, M))


class MultiHead(Record, frozen=True):
    """out(softmax(q·kᵀ)·v): a heads of d. `memory`, the width of encoder states, makes it cross-attention."""

    hidden: int
    heads: int
    head_dim: int
    names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "out_proj")
    """Names of the projections; the last is left out where another module has it (BERT)."""
    biases: tuple[bool, bool, bool, bool] = (True, True, True, True)
    memory: int = 0
    cached: bool = False
    """Keys and values are stored for decoding."""
    ordered: bool = False
    """q is scaled before the product; q, k and v are copied into memory order (modeling_whisper.py WhisperAttention)."""
    wide: bool = True
    dropout: float = 0.0
    bias: str = ""
    """T5's relative positions: `own` table, made here; `shared`: made by the first layer of the stack; empty for none."""
    buckets: int = 0
    causal: bool = False

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h), or (n, A) where the last projection is elsewhere."""
        sizes = Heads(self.heads, self.heads, self.head_dim, self.head_dim)
        source = x
        if self.memory:
            source = t.from_outside("encoder states", (MEMORY_TOKENS, Dim("h", self.memory)), x.dtype)
        q = self._project(t, x, 0, scaled=self.ordered)
        k, v = self._project(t, source, 1), self._project(t, source, 2)
        if self.cached:
            kind = "cross" if self.memory else "kv"
            t.cache(kind, "key", (sizes.k_width,))
            t.cache(kind, "value", (sizes.v_width,))
        pairs = CROSS_SCORES if self.memory else SCORES
        out = attend(t, q, k, v, sizes, dropout=self.dropout, scores=pairs, wide=self.wide, bias=self._bias(t, q), causal=self.causal)
        if self.ordered and t.setup.kernels.attention != "eager":
            # a fused kernel lays its result out as it finds the query: by head here, so that the tokens must be brought together by a copy
            out = ops.contiguous(t, out)
        return linear(t, out, self.names[3], Dim("h", self.hidden), bias=self.biases[3]) if self.names[3] else out

    def _project(self, t: Tape, x: Value, which: int, *, scaled: bool = False) -> Value:
        """q, k or v; `ordered` also scales q, and copies."""
        y = linear(t, x, self.names[which], Dim("A", self.heads * self.head_dim), bias=self.biases[which])
        if scaled:
            y = ops.scale(t, y)
        return ops.contiguous(t, y) if self.ordered else y

    def _bias(self, t: Tape, q: Value) -> Value | None:
        """What is added to the scores: T5's relative positions, or the zeros that its cross-attention makes once for all layers."""
        if not self.bias:
            return None
        keys = MEMORY if self.memory else KEYS
        dims = (Dim("a", self.heads), QUERIES, keys)
        if self.bias == "shared":
            # rows of a table have the type of the weights, even where autocast makes q narrower
            kind = q.dtype if self.memory else t.setup.weights
            table = t.from_outside("position bias", dims, kind, grad=t.setup.trains("relative_attention_bias.weight") and not self.memory)
        elif self.memory:
            table = t.new("zeros", dims, q.dtype, grad=False)
            t.step("zeros", (), (table,))
            t.until_end(table)
        else:
            table = _relative(t, self.buckets, Dim("a", self.heads))
        if t.setup.kernels.attention == "eager" or self.memory:
            return table
        # integrations/sdpa_attention.py create_position_bias_mask: a copy in memory order for every layer, broadcast over the batch
        mask = t.new("position bias", dims, table.dtype, table.grad)
        t.step("copy", (table,), (mask,))
        mask = ops.autocast(t, mask)
        spread = Value(mask.storage, (Dim("b", 1, (B,)), *dims), mask.dtype, mask.grad)
        t.step("expand", (mask,), (spread,), made=[Made(mask, Size.of(dims, mask.dtype))])
        return spread


def _relative(t: Tape, buckets: int, heads: Dim) -> Value:
    """T5Attention.compute_bias: bucket numbers of all pairs of positions, then rows of a table. The bucket numbers are kept if the table is trained.

    Working them out holds 49 bytes a pair at its highest: five int64 and one bool tensor of s·t beside the result (`torch.min(if_large, full_like)`).
    """
    pairs = (QUERIES, KEYS)
    with t.scope("relative_attention_bias"):
        table = t.parameter("weight", (Dim("buckets", buckets), heads))
        ids = t.new("buckets", pairs, INT64, grad=False)
        t.step("buckets", (), (ids,), scratch=Size.of((*pairs, Dim("41", 41)), BOOL))
        out = t.new("embedding", (heads, *pairs), table.dtype, table.grad)
        t.step("embedding", (table, ids), (out,), saved=(ids,) if table.grad else ())
        t.until_end(out)
    return out
