"""Llama 4's experts: every expert gets every token, scaled by its score, which is 0 for tokens that did not choose it (modeling_llama4.py)."""

from __future__ import annotations

from everybyte.basics.dtypes import FP32
from everybyte.basics.record import Record
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import GatedMLP, activate
from everybyte.layers.experts.routed import packs_stacked, read_stacked
from everybyte.layers.recording import ops
from everybyte.layers.recording.indexing import top_k, total
from everybyte.layers.recording.size import TOKENS, Dim, Dims
from everybyte.layers.recording.tape import Tape, Value


class DenselyRouted(Record, frozen=True):
    """A shared expert, and E experts run over E·n rows by one batched product."""

    hidden: int
    ffn: int
    experts: int
    top_k: int
    activation: str = "silu"

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        scores = self._scores(t, x)
        every: Dims = (Dim("E·n", self.experts, TOKENS.axes), x.dims[-1])
        scaled = ops.mul(t, ops.repeat(t, x, every), scores)
        with t.scope("experts", scaled):
            routed = self._apart(t, scaled) if t.setup.kernels.experts == "linears" else self._experts(t, scaled)
        with t.scope("shared_expert", routed):
            out = GatedMLP(self.hidden, self.ffn, self.activation).forward(t, x)
        return ops.add_(t, out, total(t, routed, x.dims))

    def _scores(self, t: Tape, x: Value) -> Value:
        """σ of the chosen logits, -inf for all others: (n, E)."""
        width = Dim("E", self.experts)
        with t.scope("router"):
            logits = ops.linear(t, x, t.parameter("weight", (width, x.dims[-1])), None, width)
            values, places = top_k(t, logits, Dim("top", self.top_k))
            spread = t.new("scatter", logits.dims, logits.dtype, values.grad)
            t.step("scatter", (values, places), (spread,), saved=(places,))
            scores = ops.cast(t, ops.unary(t, "sigmoid", ops.cast(t, spread, FP32), keeps="output"), x.dtype)
        t.hold(logits, scores)
        return ops.contiguous(t, scores)  # in the order of the experts

    def _experts(self, t: Tape, x: Value) -> Value:
        width, hidden = Dim("f", self.ffn), x.dims[-1]
        both = self._product(t, x, "gate_up_proj", Dim("2f", 2 * self.ffn))
        gate, up = ops.split(t, both, [(x.dims[0], width)] * 2)
        return self._product(t, ops.mul(t, up, activate(t, gate, self.activation)), "down_proj", hidden)

    def _product(self, t: Tape, x: Value, leaf: str, out: Dim) -> Value:
        packed = packs_stacked(t, leaf)
        weight = t.parameter(leaf, (Dim("E", self.experts), x.dims[-1], out), share=(self.top_k, self.experts), packed=packed)
        return ops.matmul(t, x, read_stacked(t, weight) if packed else weight, (x.dims[0], out))

    def _apart(self, t: Tape, x: Value) -> Value:
        """Linearised experts, one after the other, each over its own n rows; their results are stacked at the end
        (axolotl monkeypatch/models/llama4/modeling.py)."""
        hidden, width = x.dims[-1], Dim("f", self.ffn)
        done = []
        for index, mine in enumerate(ops.split(t, x, [(TOKENS, hidden)] * self.experts)):
            gate = self._linear(t, mine, f"gate_projs.{index}", width)
            up = self._linear(t, mine, f"up_projs.{index}", width)
            done.append(self._linear(t, ops.mul(t, up, activate(t, gate, self.activation)), f"down_projs.{index}", hidden))
        t.hold(*done)
        return ops.cat(t, done, x.dims)

    def _linear(self, t: Tape, x: Value, leaf: str, out: Dim) -> Value:
        return linear(t, x, leaf, out, share=(self.top_k, self.experts))
