"""What makes the first hidden states of an image or a sound, and what carries them into a language model."""

from __future__ import annotations

from dataclasses import dataclass

from everybyte.layers import ops
from everybyte.layers.conv import conv
from everybyte.layers.linear import linear
from everybyte.layers.mlp import activate
from everybyte.layers.norm import layer_norm, rms_norm
from everybyte.layers.size import SEQUENCES, TOKENS, B, Dim, Dims, S
from everybyte.layers.tape import Tape, Value


def image(channels: int, height: int, width: int) -> Dims:
    """(b, C·H·W): an image of a fixed size for each item."""
    return (SEQUENCES, Dim("C·H·W", channels * height * width))


@dataclass(frozen=True, slots=True)
class PatchEmbedding:
    """A strided convolution over patches, a class token in front, learned positions added."""

    channels: int
    patch: tuple[int, ...]
    hidden: int
    patches: int
    """Patches of the configured image: rows of the position table without class tokens."""
    leaf: str = "patch_embedding"
    bias: bool = True
    class_token: str = ""
    """Name of the class token; empty for none."""
    positions: str = ""
    """Name of the position table; empty for none."""
    table: bool = False
    """Positions are looked up in an Embedding (its parameter is `positions`.weight); else added as they are."""
    norm: str = ""
    """Name of a LayerNorm (`layer:` ...) or RMSNorm (`rms:` ...) behind it."""
    dropout: float = 0.0

    def forward(self, t: Tape, x: Value) -> Value:
        """Pixels of whole images, or patches already cut out -> (n, h)."""
        hidden = Dim("h", self.hidden)
        grid = Dim("p·b", self.patches, (B,)) if self.class_token else TOKENS
        out = conv(t, ops.detach(x), self.leaf, self.hidden, self.patch, grid, bias=self.bias, channels=self.channels)
        out = ops.view(out, (grid, hidden))
        rows = self.patches
        if self.class_token:
            token = t.parameter(self.class_token, (hidden,))
            rows += 1
            out = ops.cat(t, (token, out), (TOKENS, hidden))
        if self.positions and self.table:
            with t.scope(self.positions):
                out = ops.add(t, out, ops.embedding(t, "weight", Dim("p", rows), hidden, Dim("s", 1, (S,))))
        elif self.positions:
            out = ops.add(t, out, t.parameter(self.positions, (Dim("p", rows), hidden)))
        if self.norm:
            kind, _, leaf = self.norm.partition(":")
            out = layer_norm(t, out, leaf) if kind == "layer" else rms_norm(t, out, leaf)
        return ops.dropout(t, out, self.dropout)
