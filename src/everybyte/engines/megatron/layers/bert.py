"""Both ends of Megatron Core's BERT (models/bert/bert_model.py, examples/bert/pretrain_bert.py): token types in the embedding; the masked-language head
with a bias for every word; sentence order out of the first token. Its layers are those of GPT with a mask of padding."""

from __future__ import annotations

from everybyte.basics.dtypes import BOOL, FP32, INT64
from everybyte.engines.megatron.layers.embedding_and_head import Entry, Loss, Received, cross_entropy
from everybyte.engines.megatron.layers.linear import norm, own_gradients
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import SEQUENCES, TOKENS, B, Dim, S, Size
from everybyte.layers.recording.tape import Made, Tape, Value

BATCH_WIDTH = 44
"""Bytes a token of ids, types, labels, loss mask and padding mask as int64, and the loss mask in fp32 (pretrain_bert.py get_batch)."""
TYPES = 2
"""Kinds of tokens: those of the first and of the second sentence."""


def _batch(t: Tape, *, square: bool) -> None:
    """The micro-batch. Local layers make the mask of all pairs of positions once for all of them, out of a product in int64."""
    with t.scope("batch"):
        t.until_end(ops.made(t, "ids, types, labels and masks", (TOKENS, Dim("w", BATCH_WIDTH)), BOOL))
        if square:
            pairs = (Dim("b·s²", 1, (B, S, S)),)
            mask = t.new("attention mask", pairs, BOOL, False)
            t.step("attention mask", (), (mask,), scratch=Size.of(pairs, INT64))
            t.until_end(mask)


class BertEntry(Entry, frozen=True):
    """Words, positions and token types, dropout."""

    def read_batch(self, t: Tape) -> None:
        """The micro-batch."""
        _batch(t, square=not self.style.te)

    def typed(self, t: Tape, x: Value) -> Value:
        """x (n, h) and the embedding of each token's type, where there is a task that needs it."""
        if not self.style.binary_head:
            return x
        with t.scope("tokentype_embeddings"):
            table = t.parameter("weight", (Dim("types", TYPES), x.dims[-1]))
            rows = t.new("embedding", (TOKENS, x.dims[-1]), table.dtype, True)
            t.step("embedding", (table,), (rows,), made=own_gradients(table))
        return ops.add(t, x, rows)


class BertReceived(Received, frozen=True):
    """The hidden states of another stage and the batch that this stage reads for itself."""

    def read_batch(self, t: Tape) -> None:
        """The micro-batch."""
        _batch(t, square=not self.style.te)


class BertLoss(Loss, frozen=True):
    """Dense, GELU and LayerNorm before the product with the vocabulary (bert_lm_head.py); every position has a loss, whether masked or not. Beside it
    the pooler and the head that tells the order of two sentences."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n/t, h) -> the loss."""
        h, style = x.dims[-1], self.style
        first = self._pooled(t, x) if style.binary_head else None
        with t.scope("lm_head"):
            inner = _dense(t, x, "dense", h)
            turned = t.new("gelu", inner.dims, inner.dtype, True)
            t.step("gelu", (inner,), (turned,), saved=(inner,), made=[Made(inner, Size.of(inner.dims, inner.dtype))])
            turned = norm(t, turned, "layer_norm", "layer", style)
        logits = self.logits(t, turned)
        words = cross_entropy(t, logits, style)
        if first is None:
            return words
        order = _dense(t, first, "binary_head", Dim("2", 2))
        out = t.new("loss", (), FP32, True)
        t.step("sum of losses", (words, order), (out,), made=[Made(v, Size.of(v.dims, v.dtype)) for v in (words, order)])
        return out

    def logits(self, t: Tape, x: Value) -> Value:
        """x (n/t, h) -> (n, V/t): the product, and the bias added into a new tensor (tensor_parallel/layers.py LinearWithGradAccumulation)."""
        plain = super().logits(t, x)
        with t.scope("output_layer"):
            shift = t.parameter("bias", plain.dims[-1:])
            out = t.new("add", plain.dims, plain.dtype, True)
            t.step("add", (plain, shift), (out,), made=[Made(plain, None), *own_gradients(shift)])
        return out

    def _pooled(self, t: Tape, x: Value) -> Value:
        """tanh(dense(first token)) (b, h); with sequence parallelism every rank gathers all tokens (pooler.py)."""
        whole = x
        if self.split.sp:
            whole = t.new("all-gather", (TOKENS, x.dims[-1]), x.dtype, True)
            t.step("all-gather", (x,), (whole,), made=[Made(x, None)])
        first = Value(whole.storage, (SEQUENCES, x.dims[-1]), x.dtype, True)
        t.step("select", (whole,), (first,), made=[Made(whole, Size.of(whole.dims, whole.dtype))])
        with t.scope("pooler"):
            return ops.unary(t, "tanh", _dense(t, first, "dense", x.dims[-1]), keeps="output")


def _dense(t: Tape, x: Value, leaf: str, out: Dim) -> Value:
    """`torch.nn.Linear`: keeps its input; the gradients of weight and bias are tensors of their own."""
    with t.scope(leaf, x):
        weight, shift = t.parameter("weight", (out, x.dims[-1])), t.parameter("bias", (out,))
        y = t.new("linear", (*x.dims[:-1], out), x.dtype, True)
        t.step("linear", (x, weight, shift), (y,), saved=(x,), made=[Made(x, Size.of(x.dims, x.dtype)), *own_gradients(weight, shift)])
        return y
