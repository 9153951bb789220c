"""The blocks of T5 (transformers modeling_t5.py)."""

from __future__ import annotations

from everybyte.basics.dtypes import FP16
from everybyte.basics.record import Record
from everybyte.layers.attention.multihead import MultiHead
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import activate
from everybyte.layers.common.norm import rms_norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Dim
from everybyte.layers.recording.tape import Tape, Value


class T5FeedForward(Record, frozen=True):
    """wo(dropout(act(wi(x)))), or with a gate beside it."""

    hidden: int
    ffn: int
    activation: str
    gated: bool
    dropout: float

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        width = Dim("f", self.ffn)
        if self.gated:
            gate = activate(t, linear(t, x, "wi_0", width), self.activation)
            inner = ops.mul(t, gate, linear(t, x, "wi_1", width))
        else:
            inner = activate(t, linear(t, x, "wi", width), self.activation)
        # brought to the type of wo's weight, whatever autocast then does with it
        inner = ops.cast(t, ops.dropout(t, inner, self.dropout), t.setup.weights)
        return linear(t, inner, "wo", Dim("h", self.hidden))


class T5Block(Record, frozen=True):
    """Attention, cross-attention in a decoder, feed-forward: each on a norm of x and added to x."""

    attention: MultiHead
    cross: MultiHead | None
    mlp: T5FeedForward
    dropout: float

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        parts: list[tuple[MultiHead | T5FeedForward, str]] = [(self.attention, "SelfAttention")]
        if self.cross is not None:
            parts.append((self.cross, "EncDecAttention"))
        parts.append((self.mlp, "DenseReluDense"))
        for index, (part, name) in enumerate(parts):
            with t.scope(f"layer.{index}", x):
                branch = rms_norm(t, x, "layer_norm", style="t5")
                with t.scope(name, branch):
                    branch = part.forward(t, branch)
                x = ops.add(t, x, ops.dropout(t, branch, self.dropout))
                if x.dtype == FP16:
                    # values that overflow are clamped, so that fp16 can train; clamp keeps its input
                    x = ops.unary(t, "clamp", x)
        return x


class T5Tail(Record, frozen=True):
    """The norm behind a stack, dropout, and the division by √h before a head that shares the embedding."""

    leaf: str
    dropout: float
    scaled: bool = False

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        x = ops.dropout(t, rms_norm(t, x, self.leaf, style="t5"), self.dropout)
        return ops.scale(t, x) if self.scaled else x
