"""Blocks and heads of encoders (BERT, DistilBERT) and what stands behind them."""

from __future__ import annotations

from typing import Any

from everybyte.basics.record import Record
from everybyte.layers.attention.multihead import MultiHead
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import activate
from everybyte.layers.common.norm import layer_norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import SEQUENCES, Dim
from everybyte.layers.recording.tape import Tape, Value


class PostNormBlock(Record, frozen=True):
    """norm(x + attention(x)), then norm(x + mlp(x)), as modeling_bert.py writes it; `names` are those of the modules."""

    attention: MultiHead
    ffn: int
    activation: str
    dropout: float
    attention_name: str = "attention"
    attention_out: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    norm: str = "output.LayerNorm"
    attention_dropout: bool = True
    """Dropout behind the attention's projection (BERT; not DistilBERT)."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        hidden = Dim("h", self.attention.hidden)
        with t.scope(self.attention_name, x):
            mixed = self.attention.forward(t, x)
        if self.attention_out:
            mixed = linear(t, mixed, self.attention_out, hidden, bias=True)
        if self.attention_dropout:
            mixed = ops.dropout(t, mixed, self.dropout)
        x = layer_norm(t, ops.add(t, mixed, x), self.attention_norm)
        wide = activate(t, linear(t, x, self.up, Dim("f", self.ffn), bias=True), self.activation)
        narrow = ops.dropout(t, linear(t, wide, self.down, hidden, bias=True), self.dropout)
        return layer_norm(t, ops.add(t, narrow, x), self.norm)


class Pooler(Record, frozen=True):
    """tanh(dense(first token)): x (n, h) -> (b, out)."""

    hidden: int
    out: int
    leaf: str = "pooler.dense"
    norm: str = ""
    """Name of a LayerNorm before it."""
    norm_after: bool = False
    """The norm sees the chosen token only."""
    activation: bool = True
    bias: bool = True
    scalar: str = ""
    """Name of a single number that is learned beside it (CLIP's temperature)."""

    def forward(self, t: Tape, x: Value) -> Value:
        """The first token of each sequence, projected."""
        if self.norm and not self.norm_after:
            x = layer_norm(t, x, self.norm)
        first = ops.narrow(t, x, (SEQUENCES, x.dims[-1]))
        if self.norm and self.norm_after:
            first = layer_norm(t, first, self.norm)
        if self.scalar:
            t.parameter(self.scalar, ())
        pooled = linear(t, first, self.leaf, Dim("h", self.out), bias=self.bias) if self.leaf else first
        return ops.unary(t, "tanh", pooled, keeps="output") if self.activation else pooled


class MaskedHead(Record, frozen=True):
    """norm(act(dense(x))): what BERT and RoBERTa do before the product with the vocabulary."""

    hidden: int
    activation: str
    dense: str = "cls.predictions.transform.dense"
    norm: str = "cls.predictions.transform.LayerNorm"

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        return layer_norm(t, activate(t, linear(t, x, self.dense, Dim("h", self.hidden), bias=True), self.activation), self.norm)


class PooledNorm(Record, frozen=True):
    """A LayerNorm of the first token alone; the hidden states go on as they are (CLIP's image encoder inside a language model)."""

    leaf: str

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> the same x."""
        layer_norm(t, ops.narrow(t, x, (SEQUENCES, x.dims[-1])), self.leaf)
        return x


class Chain(Record, frozen=True):
    """Layers one after the other."""

    layers: tuple[Any, ...]

    def forward(self, t: Tape, x: Value) -> Value:
        """x -> what the last layer returns."""
        for layer in self.layers:
            x = layer.forward(t, x)
        return x
