"""Both ends of a pipeline: the batch and the embedding, what a later stage receives, the final norm, the head and the vocabulary-parallel loss."""

from __future__ import annotations

from everybyte.basics.dtypes import BOOL, FP32, INT64, DType
from everybyte.basics.record import Record
from everybyte.engines.megatron.layers.linear import norm, own_gradients
from everybyte.engines.megatron.sizes import Split
from everybyte.engines.megatron.style import Style
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import QUERIES, TOKENS, B, Dim, S, Size
from everybyte.layers.recording.tape import Made, Tape, Value

BATCH_WIDTH = 28
"""Bytes a token of ids, labels and positions as int64 and the loss mask as fp32 (pretrain_gpt.py get_batch)."""
SMALL = 37
"""Bytes a token of the loss's vectors: targets and their mask, largest logit, predicted logit, sum of exponentials, loss and its mask
(tensor_parallel/cross_entropy.py)."""


def batch(t: Tape, split: Split, style: Style) -> None:
    """The micro-batch, which forward_step holds until its forward is done; the attention mask covers whole sequences, before context parallelism
    cuts them."""
    with t.scope("batch"):
        t.until_end(ops.made(t, "ids, labels, positions and loss mask", (TOKENS, Dim("w", BATCH_WIDTH)), BOOL))
        if style.loads_mask:
            t.until_end(ops.made(t, "attention mask", (Dim("b·s²", split.cp**2, (B, S, S)),), BOOL))


class Entry(Record, frozen=True):
    """The embedding: this rank's rows of the table, summed over the group, learned positions, dropout."""

    hidden: int
    vocab: int
    positions: int
    split: Split
    style: Style

    def read_batch(self, t: Tape) -> None:
        """The micro-batch."""
        batch(t, self.split, self.style)

    def typed(self, t: Tape, x: Value) -> Value:
        """x (n, h) with what else is added to words and positions."""
        return x

    def forward(self, t: Tape, x: Value) -> Value:
        """ids (n) -> (n/t, h)."""
        self.read_batch(t)
        width = Dim("h", self.hidden)
        with t.scope("word_embeddings"):
            table = t.parameter("weight", (Dim("V", self.vocab // self.split.tp), width))
            ids = t.given("ids", (TOKENS,), INT64)
            out = t.new("embedding", (TOKENS, width), table.dtype, True)
            t.step("embedding", (table, ids), (out,), saved=(ids,), made=own_gradients(table))
        if self.positions:
            with t.scope("position_embeddings"):
                places = t.parameter("weight", (Dim("p", self.positions), width))
                rows = t.new("embedding", (QUERIES, width), table.dtype, True)
                t.step("embedding", (places,), (rows,), made=own_gradients(places))
                out = ops.add(t, out, rows)
        out = self.typed(t, out)
        if self.split.sp:
            part = t.new("reduce-scatter", (self.split.tokens, width), out.dtype, True)
            t.step("reduce-scatter", (out,), (part,), made=[Made(out, Size.of(out.dims, out.dtype))])
            out = part
        if not self.style.dropout:
            return out
        dropped = t.new("dropout", out.dims, out.dtype, True)
        mask = t.new("dropout mask", out.dims, BOOL, False)
        t.step("dropout", (out,), (dropped, mask), saved=(mask,), made=[Made(out, Size.of(out.dims, out.dtype))])
        return dropped


class Received(Record, frozen=True):
    """The hidden states that another stage sent, and the batch that this stage reads for itself."""

    hidden: int
    dtype: DType
    split: Split
    style: Style
    table: int = 0
    """Rows of a word embedding that lies here for blocks of multi-token prediction alone, 0 for none."""

    def read_batch(self, t: Tape) -> None:
        """The micro-batch."""
        batch(t, self.split, self.style)

    def forward(self, t: Tape, x: Value) -> Value:
        """ids (n) -> (n/t, h)."""
        self.read_batch(t)
        if self.table:
            with t.scope("word_embeddings"):
                t.parameter("weight", (Dim("V", self.table), Dim("h", self.hidden)))
        out = t.new("receive", (self.split.tokens, Dim("h", self.hidden)), self.dtype, True)
        t.step("receive", (), (out,))
        return out


class FinalNorm(Record, frozen=True):
    """The norm behind the last layer."""

    norm: str
    style: Style

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n/t, h) -> (n/t, h)."""
        return norm(t, x, "final_layernorm", self.norm, self.style)


class Loss(Record, frozen=True):
    """The head on this rank's part of the vocabulary and the cross entropy over the group's parts."""

    vocab: int
    split: Split
    style: Style
    tied: bool
    """The weight is that of the embedding on this rank."""
    reads_kept: bool = False
    """The hidden states are kept by blocks of multi-token prediction as well."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n/t, h) -> the loss."""
        x.storage.kept_before = self.reads_kept
        return cross_entropy(t, self.logits(t, x), self.style)

    def logits(self, t: Tape, x: Value) -> Value:
        """x (n/t, h) -> (n, V/t)."""
        return logits_of(t, x, self.vocab, self.split, self.style, tied=self.tied)


def logits_of(t: Tape, x: Value, vocab: int, split: Split, style: Style, *, tied: bool) -> Value:
    """x (n/t, h) -> this rank's logits (n, V/t). Megatron Core's own column-parallel layer: its input is gathered in the global memory buffer."""
    with t.scope("output_layer", x):
        width = Dim("V", vocab // split.tp)
        weight = t.parameter("weight", (width, x.dims[-1]), tied=tied)
        out = t.new("linear", (TOKENS, width), x.dtype, True)
        whole = Size.of((TOKENS, x.dims[-1]), x.dtype) if split.sp else Size()
        made = [Made(x, Size.of(x.dims, x.dtype)), *([] if style.wgrad_fused else own_gradients(weight))]
        t.step("linear", (x, weight), (out,), saved=(x,), made=made, back_scratch=whole)
        return out


def cross_entropy(t: Tape, logits: Value, style: Style) -> Value:
    """Logits (n, V/t) -> the loss. The caller holds the logits. `eager`: an fp32 copy, none of fp32 logits, on which everything else is written, and whose
    softmax is kept (tensor_parallel/cross_entropy.py); `native`: the compiled form makes the exponentials anew (fusions/fused_cross_entropy.py); `te`: the
    gradient is written over the logits (transformer_engine/pytorch/cross_entropy.py)."""
    with t.scope("loss", logits):
        small = t.new("vectors of the loss", (TOKENS, Dim("w", SMALL)), BOOL, False)
        out = t.new("loss", (TOKENS,), FP32, True)
        if style.cross_entropy == "te" or (style.cross_entropy == "eager" and logits.dtype == FP32):
            t.step("cross entropy", (logits,), (out, small), saved=(logits, small), made=[Made(logits, None, into=logits.storage)])
            return out
        wide = t.new("to", logits.dims, FP32, True)
        if style.cross_entropy == "eager":
            t.step("to", (logits,), (wide,))
            t.step("cross entropy", (wide,), (out, small), saved=(wide, small), made=[Made(wide, None, into=wide.storage)])
            return out
        shares = t.new("softmax", logits.dims, FP32, False)
        made = [Made(wide, Size.of(logits.dims, logits.dtype))]
        t.step("to", (logits,), (wide,), made=[Made(logits, None)])
        t.step("cross entropy", (wide,), (out, shares, small), saved=(shares, small), made=made, back_scratch=shares.storage.size)
        return out
