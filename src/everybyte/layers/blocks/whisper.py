"""The stem and the blocks of Whisper (transformers modeling_whisper.py)."""

from __future__ import annotations

from everybyte.basics.dtypes import FP16
from everybyte.basics.record import Record
from everybyte.layers.attention.multihead import MultiHead
from everybyte.layers.common.conv import conv
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import activate
from everybyte.layers.common.norm import layer_norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import QUERIES, TOKENS, B, Dim, S
from everybyte.layers.recording.tape import Tape, Value


class SoundStem(Record, frozen=True):
    """Two convolutions over the spectrogram, the second halves its length; fixed positions added. Frames are twice the positions."""

    bins: int
    hidden: int
    positions: int
    prefix: str
    dropout: float

    def forward(self, t: Tape, x: Value) -> Value:
        """Spectrogram (b, bins·frames) -> (n, h)."""
        hidden = Dim("h", self.hidden)
        frames = Dim("2n", 1, (B, S._replace(share=(2, 1))))
        wide = conv(t, ops.detach(x), f"{self.prefix}.conv1", self.hidden, (3,), frames, channels=self.bins)
        wide = activate(t, wide, "gelu")
        out = activate(t, conv(t, wide, f"{self.prefix}.conv2", self.hidden, (3,), TOKENS), "gelu")
        out = ops.view(out, (TOKENS, hidden))
        with t.scope(f"{self.prefix}.embed_positions"):
            # the table is never trained, but it is a parameter
            t.parameter("weight", (Dim("p", self.positions), hidden), fixed=True)
            rows = t.new("embedding", (QUERIES, hidden), out.dtype, grad=False)
            t.step("embedding", (), (rows,))
            out = ops.add(t, out, rows)
        return ops.dropout(t, out, self.dropout)


class WhisperBlock(Record, frozen=True):
    """Attention, cross-attention in a decoder, feed-forward: each on a norm of x and added to x."""

    attention: MultiHead
    cross: MultiHead | None
    ffn: int
    activation: str
    dropout: float
    activation_dropout: float
    clamps: bool
    """fp16 results are clamped (the encoder)."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        x = self._attend(t, x, self.attention, "self_attn")
        if self.cross is not None:
            x = self._attend(t, x, self.cross, "encoder_attn")
        inner = layer_norm(t, x, "final_layer_norm")
        inner = activate(t, linear(t, inner, "fc1", Dim("f", self.ffn), bias=True), self.activation)
        inner = linear(t, ops.dropout(t, inner, self.activation_dropout), "fc2", x.dims[-1], bias=True)
        x = ops.add(t, x, ops.dropout(t, inner, self.dropout))
        return ops.unary(t, "clamp", x) if self.clamps and x.dtype == FP16 else x

    def _attend(self, t: Tape, x: Value, attention: MultiHead, name: str) -> Value:
        branch = layer_norm(t, x, f"{name}_layer_norm")
        with t.scope(name, branch, x):
            branch = attention.forward(t, branch)
        return ops.add(t, x, ops.dropout(t, branch, self.dropout))
