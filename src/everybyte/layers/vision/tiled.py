"""Mllama (Llama 3.2 Vision): a tower over the tiles of an image, and blocks of the decoder that read it by cross-attention (modeling_mllama.py)."""

from __future__ import annotations

from typing import Any

from everybyte.basics.record import Record
from everybyte.layers.attention.kernels import SCORES, Heads, attend
from everybyte.layers.attention.multihead import CROSS_SCORES
from everybyte.layers.common.conv import conv
from everybyte.layers.common.linear import linear
from everybyte.layers.common.norm import Norm, layer_norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import MEMORY_TOKENS, SEQUENCES, TOKENS, B, Dim
from everybyte.layers.recording.tape import Tape, Value

ONE = Dim("1", 1)


class MaskedAttention(Record, frozen=True):
    """Attention without positions whose mask the model makes once for all layers: over the tiles of an image, or of text over them (`memory`)."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    memory: bool = False
    """Keys and values come from the tower's result, projected to the decoder's width, and are kept for decoding; q and k have norms over each head."""
    dropout: float = 0.0

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        sizes = Heads(self.heads, self.kv_heads, self.head_dim, self.head_dim)
        source = t.from_outside("image states", (MEMORY_TOKENS, Dim("h", self.hidden)), x.dtype) if self.memory else x
        q = self._normed(t, linear(t, x, "q_proj", sizes.q_width), "q_norm", self.heads)
        k, v = linear(t, source, "k_proj", sizes.k_width), linear(t, source, "v_proj", sizes.v_width)
        k = self._normed(t, k, "k_norm", self.kv_heads)
        if self.memory:
            t.cache("cross", "key", (sizes.k_width,))
            t.cache("cross", "value", (sizes.v_width,))
        t.hold(q, k, v)
        pairs = CROSS_SCORES if self.memory else SCORES
        mask = None
        if t.setup.kernels.attention != "flash":
            t.share("attention mask", (pairs,), t.setup.weights)
            mask = t.from_outside("attention mask", (pairs,), t.setup.weights, grad=False)
        out = attend(t, q, k, v, sizes, dropout=self.dropout, scores=pairs, bias=mask, causal=False)
        return linear(t, out, "o_proj", Dim("h", self.hidden))

    def _normed(self, t: Tape, x: Value, leaf: str, heads: int) -> Value:
        if not self.memory:
            return x
        by_head = ops.view(x, (x.dims[0], Dim("a" if heads == self.heads else "k", heads), Dim("d", self.head_dim)))
        return ops.view(Norm().forward(t, by_head, leaf), x.dims)


class GatedBlock(Record, frozen=True):
    """x + tanh(gate)·attention(norm(x)), then the same with the feed-forward layer; each gate is one learned number."""

    mixer: Any
    mlp: Any
    norm: Norm
    gates: tuple[str, str]
    mixer_name: str = "self_attn"
    masked: bool = False
    """Rows of text without an image are zeroed behind the feed-forward layer."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        parts = ((self.mixer, self.mixer_name, "input_layernorm"), (self.mlp, "mlp", "post_attention_layernorm"))
        for (part, name, norm), gate in zip(parts, self.gates, strict=True):
            branch = self.norm.forward(t, x, norm)
            with t.scope(name, branch, x):
                branch = part.forward(t, branch)
            if self.masked and part is self.mlp:
                branch = ops.mul(t, t.given("rows with an image", (TOKENS,), t.setup.weights), branch)
            x = ops.add(t, x, ops.mul(t, _tanh(t, gate), branch))
        return x


def _tanh(t: Tape, leaf: str) -> Value:
    """tanh of a learned number."""
    return ops.unary(t, "tanh", t.parameter(leaf, (ONE,)), keeps="output")


class TilePositions(Record, frozen=True):
    """x + tanh(gate)·rows of a table by the shape of the image's grid of tiles: one vector for each tile, or for each patch of it."""

    ratios: int
    """Rows of the table: supported shapes, and none."""
    tiles: int
    leaf: str
    rows: int = 1
    """Vectors of a tile."""
    table: str = "embedding"

    def add_to(self, t: Tape, x: Value, gate: Value) -> Value:
        """x (n, h) -> (n, h)."""
        width = Dim("tiles·p·h", self.tiles * self.rows * x.dims[-1].size)
        with t.scope(self.table):
            looked = ops.embedding(t, "weight", Dim("ratios", self.ratios), width, SEQUENCES)
        return ops.add(t, x, ops.mul(t, gate, looked))

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        with t.scope(self.leaf, x):
            return self.add_to(t, x, _tanh(t, "gate"))


class TiledPatches(Record, frozen=True):
    """A convolution over the patches of every tile, positions of tiles, a class token, positions of patches, a norm, padding to a multiple of 8."""

    channels: int
    patch: tuple[int, int]
    hidden: int
    patches: int
    """Of one tile, without the class token."""
    tiles: int
    ratios: int
    prefix: str

    def forward(self, t: Tape, x: Value) -> Value:
        """Pixels of all tiles of images -> (n, h)."""
        hidden, rows = Dim("h", self.hidden), self.patches + 1
        grid, full = (Dim("p·b", self.tiles * count, (B,)) for count in (self.patches, rows))
        with t.scope(self.prefix):
            out = conv(t, ops.detach(x), "patch_embedding", self.hidden, self.patch, grid, bias=False, channels=self.channels)
            out = ops.view(out, (grid, hidden))
            out = TilePositions(self.ratios, self.tiles, "pre_tile_positional_embedding").forward(t, out)
            out = ops.cat(t, (t.parameter("class_embedding", (hidden,)), out), (full, hidden))
            with t.scope("gated_positional_embedding", out):
                out = self._positions(t, out, rows)
            out = layer_norm(t, out, "layernorm_pre")
            padded = t.new("pad", (TOKENS, hidden), out.dtype, out.grad)
            t.step("pad", (out,), (padded,))
        return padded

    def _positions(self, t: Tape, x: Value, rows: int) -> Value:
        """(1 - tanh(gate))·positions of a tile, then tanh(gate)·those of its place in the grid; tanh is worked out for each."""
        table = t.parameter("embedding", (Dim("p", rows), x.dims[-1]))
        inverse = ops.unary(t, "sub", _tanh(t, "gate"), keeps="nothing")
        x = ops.add(t, x, ops.mul(t, inverse, table))
        return TilePositions(self.ratios, self.tiles, "", rows, "tile_embedding").add_to(t, x, _tanh(t, "gate"))


class BetweenEncoders(Record, frozen=True):
    """The norm behind the first encoder and the positions of tiles before the second."""

    positions: TilePositions

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        return self.positions.forward(t, layer_norm(t, x, "layernorm_post"))


class JoinedStates(Record, frozen=True):
    """The last hidden states beside those of some blocks before them, without padding, projected to the decoder's width."""

    hidden: int
    out: int
    tokens: int
    """Of an image, without padding."""
    blocks: int
    """Of the first encoder whose results are read here too."""
    leaf: str

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h_v) -> (m, h)."""
        rows, width = Dim("m", self.tokens, (B,)), Dim("i·h", self.blocks * self.hidden)
        earlier = t.from_outside("intermediate states", (TOKENS, width), x.dtype)
        stacked = ops.cat(t, (earlier,), earlier.dims)
        parts = (ops.narrow(t, x, (rows, x.dims[-1])), ops.narrow(t, stacked, (rows, width)))
        joined = ops.cat(t, parts, (rows, Dim("(i+1)h", (self.blocks + 1) * self.hidden)))
        return linear(t, joined, self.leaf, Dim("h", self.out), bias=True)
