"""The blocks of Gemma 4 (transformers modeling_gemma4.py): attention whose keys may also be the values, experts beside the dense layer, a small input of
its own for every layer."""

from __future__ import annotations

from everybyte.basics.dtypes import INT64
from everybyte.basics.record import Record
from everybyte.layers.attention.kernels import Heads, attend
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import GatedMLP, activate
from everybyte.layers.common.norm import Norm, rms_norm
from everybyte.layers.common.rope import rotary
from everybyte.layers.experts.routed import Experts
from everybyte.layers.experts.router import Router
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import TOKENS, Dim
from everybyte.layers.recording.tape import Tape, Value

NORM = Norm(style="gemma4")
BARE = "gemma4-plain"
"""Style of the norms without a weight."""


def head_norm(t: Tape, x: Value, leaf: str, heads: int, style: str = NORM.style) -> Value:
    """RMSNorm over every head."""
    by_head = ops.view(x, (x.dims[0], Dim("a", heads), Dim("d", x.dims[1].size // heads)))
    return ops.view(rms_norm(t, by_head, leaf, style=style), x.dims)


class Gemma4Attention(Record, frozen=True):
    """Queries, keys and values each through a norm; keys and values of one projection, or those of an earlier layer."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    one_projection: bool = False
    """Values are the keys' projection through another norm."""
    reads_earlier: bool = False
    """Keys and values are those of an earlier layer; this one has none."""
    bias: bool = False
    dropout: float = 0.0
    cached: bool = True
    inner: str = ""
    """Name of the linear layer inside each projection of the image tower."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        sizes = Heads(self.heads, self.kv_heads, self.head_dim, self.head_dim)
        q = head_norm(t, linear(t, x, f"q_proj{self.inner}", sizes.q_width, bias=self.bias), "q_norm", self.heads)
        q = self._turned(t, q)
        if self.reads_earlier:
            k, v = (t.from_outside(what, (TOKENS, sizes.k_width), x.dtype) for what in ("shared keys", "shared values"))
        else:
            k, v = self._keys(t, x, sizes)
            if self.cached:
                t.cache("kv", "key", (sizes.k_width,), window=self.window)
                t.cache("kv", "value", (sizes.v_width,), window=self.window)
                k, v = ops.join(t, k, v)
        out = attend(t, q, k, v, sizes, dropout=self.dropout, window=self.window)
        return linear(t, out, f"o_proj{self.inner}", Dim("h", self.hidden), bias=self.bias)

    def _keys(self, t: Tape, x: Value, sizes: Heads) -> tuple[Value, Value]:
        k = linear(t, x, f"k_proj{self.inner}", sizes.k_width, bias=self.bias)
        v = k if self.one_projection else linear(t, x, f"v_proj{self.inner}", sizes.v_width, bias=self.bias)
        k = self._turned(t, head_norm(t, k, "k_norm", self.kv_heads))
        return k, head_norm(t, v, "v_norm", self.kv_heads, BARE)

    def _turned(self, t: Tape, x: Value) -> Value:
        """Rotary positions; the image tower turns the halves of a head by height and width, then joins them."""
        if not self.inner:
            return rotary(t, x)
        half = (x.dims[0], Dim("A/2", x.dims[1].size // 2))
        return ops.cat(t, [rotary(t, part) for part in ops.split(t, x, [half, half])], x.dims)


class Gemma4Experts(Record, frozen=True):
    """Experts beside the dense layer, each result through a norm of its own. The router has a norm, a scale a channel and a scale an expert."""

    hidden: int
    experts: Experts

    def beside(self, t: Tape, x: Value, dense: Value) -> Value:
        """x, the block's hidden states, and the dense layer's result (n, h) -> (n, h)."""
        left = NORM.forward(t, dense, "post_feedforward_layernorm_1")
        weights, chosen = self._route(t, x)
        inner = NORM.forward(t, x, "pre_feedforward_layernorm_2")
        with t.scope("experts", inner, weights, chosen):
            right = self.experts.forward(t, inner, weights, chosen)
        return ops.add(t, left, NORM.forward(t, right, "post_feedforward_layernorm_2"))

    def _route(self, t: Tape, x: Value) -> tuple[Value, Value]:
        count, top_k = self.experts.count, self.experts.top_k
        with t.scope("router"):
            scale = t.parameter("scale", (Dim("h", self.hidden),))
            scaled = ops.scale(t, ops.mul(t, rms_norm(t, x, "norm", style=BARE), scale))
            weights, chosen = Router(count, top_k, leaf="proj").forward(t, scaled)
            table = t.parameter("per_expert_scale", (Dim("E", count),))
            rows = t.new("index", weights.dims, table.dtype, table.grad)
            t.step("index", (table, chosen), (rows,), saved=(chosen,) if table.grad else ())
            return ops.mul(t, weights, rows), chosen


class Gemma4Block(Record, frozen=True):
    """Attention and feed-forward, each between two norms; then the layer's own input, where the model has it."""

    attention: Gemma4Attention
    mlp: GatedMLP
    experts: Gemma4Experts | None = None
    own_input: int = 0
    """Width of the input that every layer has of its own (per-layer embeddings)."""
    activation: str = "gelu_tanh"
    scaled: bool = True
    """The result is multiplied in place by a stored number."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        branch = NORM.forward(t, x, "input_layernorm")
        with t.scope("self_attn", branch, x):
            branch = self.attention.forward(t, branch)
        x = ops.add(t, x, NORM.forward(t, branch, "post_attention_layernorm"))
        branch = NORM.forward(t, x, "pre_feedforward_layernorm")
        with t.scope("mlp", x):
            branch = self.mlp.forward(t, branch)
        if self.experts is not None:
            branch = self.experts.beside(t, x, branch)
        x = ops.add(t, x, NORM.forward(t, branch, "post_feedforward_layernorm"))
        if self.own_input:
            x = ops.add(t, x, self._own(t, x))
        if self.scaled:
            t.buffer("layer_scalar", (Dim("1", 1),), t.setup.weights)
        return x

    def _own(self, t: Tape, x: Value) -> Value:
        given = t.from_outside("per-layer input", (TOKENS, Dim("h_l", self.own_input)), x.dtype)
        gate = activate(t, linear(t, x, "per_layer_input_gate", Dim("h_l", self.own_input)), self.activation)
        mixed = linear(t, ops.mul(t, gate, given), "per_layer_projection", x.dims[-1])
        return NORM.forward(t, mixed, "post_per_layer_input_norm")


class Gemma4Stem(Record, frozen=True):
    """The scaled embedding, and the inputs of all layers: rows of a table of their own, mixed with a projection of the embedding."""

    vocab: int
    hidden: int
    place: str
    own_input: int = 0
    layers: int = 0
    own_vocab: int = 0

    def forward(self, t: Tape, x: Value) -> Value:
        """ids (n) -> (n, h)."""
        hidden = Dim("h", self.hidden)
        with t.scope(f"{self.place}.embed_tokens"):
            out = ops.scale(t, ops.embedding(t, "weight", Dim("V", self.vocab), hidden, shared=t.setup.shared_table))
        if self.own_input:
            with t.scope(self.place):
                self._inputs(t, out)
        return out

    def _inputs(self, t: Tape, x: Value) -> None:
        width = Dim("L·h_l", self.layers * self.own_input)
        with t.scope("embed_tokens_per_layer"):
            table = t.parameter("weight", (Dim("V_l", self.own_vocab), width))
            ids = t.given("ids", (TOKENS,), INT64)
            rows = t.new("embedding", (TOKENS, width), table.dtype, table.grad)
            t.step("embedding", (table, ids), (rows,), saved=(ids,))
            rows = ops.scale(t, rows)
        mixed = ops.scale(t, linear(t, x, "per_layer_model_projection", width))
        by_layer = ops.view(mixed, (TOKENS, Dim("L", self.layers), Dim("h_l", self.own_input)))
        normed = ops.view(rms_norm(t, by_layer, "per_layer_projection_norm", style=NORM.style), rows.dims)
        t.pin(ops.scale(t, ops.add(t, normed, rows)))
