"""A mixture of experts (transformer/moe/moe_layer.py) on one rank: router, dispatcher, this rank's experts, shared expert.

Routing is taken to be balanced: every expert gets the same number of tokens. What comes to the experts of a rank is an axis of its own, which can also
be asked for the worst case.
"""

from __future__ import annotations

from everybyte.basics.dtypes import BOOL, FP32, INT64
from everybyte.basics.record import Record
from everybyte.engines.megatron.layers.linear import input_kept, kept, offloaded, own_gradients, weight_gradients
from everybyte.engines.megatron.layers.mlp import FeedForward, activated
from everybyte.engines.megatron.routing import Routing
from everybyte.engines.megatron.sizes import Dense, Mixture, Split
from everybyte.engines.megatron.style import Style
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Dim, Size
from everybyte.layers.recording.tape import Made, Tape, Value


class MoELayer(Record, frozen=True):
    """The layer: what the experts and the shared expert make of every token, summed."""

    hidden: int
    sizes: Mixture
    split: Split
    style: Style

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n/t, h) -> (n/t, h)."""
        with t.recomputed(self.style.again("moe")):
            weights = self._routed(t, x)
            shared = self._shared(t, x) if self.sizes.shared else None
            with t.scope("experts", x):
                out = self._dispatched(t, x, weights)
            return out if shared is None else ops.add_(t, out, shared)

    def _shared(self, t: Tape, x: Value) -> Value:
        expert = self.sizes.expert
        layer = FeedForward(self.hidden, Dense(self.sizes.shared, expert.activation, expert.gated, expert.bias), self.split, self.style)
        with t.scope("shared_experts", x), t.recomputed(self.style.again("shared_experts")):
            return layer.forward(t, x)[0]

    def _routed(self, t: Tape, x: Value) -> Value:
        """The router (moe/router.py TopKRouter): logits, scores and sparse weights of all experts in fp32, the map of the chosen ones and its
        copy for the balancing loss, and of the top k scores and positions."""
        every = (self.split.tokens, Dim("E", self.sizes.experts))
        chosen = (self.split.tokens, Dim("top", self.sizes.top_k))
        with t.scope("router", x):
            weight = t.parameter("weight", (every[1], x.dims[-1]))
            logits = t.new("logits", every, FP32, True)
            made = [Made(x, Size.of(x.dims, x.dtype)), *own_gradients(weight)]
            t.step("linear", (x, weight), (logits,), saved=(x,), made=made)
            scores = ops.softmax(t, logits, FP32)
            values, places = t.new("topk", chosen, FP32, True), t.new("topk positions", chosen, INT64, False)
            sparse = t.new("routing weights", every, FP32, True)
            maps = [t.new("routing map", every, BOOL, False) for _ in range(2)]
            t.step(
                "topk",
                (scores, logits),
                (values, places, sparse, *maps),
                saved=(logits, values, places, sparse, *maps),
                made=[Made(scores, Size.of(every, FP32))],
            )
        return sparse

    def _dispatched(self, t: Tape, x: Value, weights: Value) -> Value:
        """Tokens to the ranks of their experts, through these, and back (moe/token_dispatcher.py). `all-gather`: every rank of the expert group
        gets all tokens in the global memory buffer and picks its own; `all-to-all`: tokens are put in order, exchanged, and put in order again."""
        routing = Routing(self.sizes.experts, self.sizes.top_k, self.split, self.style)
        arrived = (routing.arrived, x.dims[-1])
        if self.style.dispatcher == "allgather":
            mine = _moved(t, "permute", x, arrived)
            return self._summed(t, self._experts(t, mine, weights), x, weights)
        sent = (routing.sent, x.dims[-1])
        ordered = _moved(t, "permute", x, sent)
        mine = _moved(t, "all-to-all", ordered, arrived) if self.split.ep * self.split.etp > 1 else ordered
        if self.sizes.experts // self.split.ep > 1 and self.split.ep > 1:
            mine = _moved(t, "sort by expert", mine, arrived)
        out = self._experts(t, mine, weights)
        out = _moved(t, "all-to-all", out, sent) if self.split.ep * self.split.etp > 1 else out
        return self._summed(t, out, x, weights)

    def _summed(self, t: Tape, source: Value, x: Value, weights: Value) -> Value:
        """Every token's results are added up. Where PyTorch must be deterministic that is `index_add_`, whose backward keeps its source
        (moe_utils.py unpermute); `scatter_add_` and the fused kernel keep nothing. Weights that come this late keep the results as well."""
        gathered = self.split.etp * self.split.ep if self.style.dispatcher == "allgather" else 1
        every = (Dim("n", gathered, x.dims[0].axes), x.dims[-1])
        if self.style.late_weights:
            source = ops.mul(t, source, t.from_outside("weights", source.dims[:1], source.dtype))
        keeps = self.style.deterministic and not self.style.permute_fused and not self.style.late_weights
        out = t.new("unpermute", every, x.dtype, True)
        t.step("unpermute", (source, weights), (out,), saved=(source,) if keeps else (), made=[Made(source, Size.of(source.dims, source.dtype))])
        return out if gathered == 1 else _moved(t, "reduce-scatter", out, x.dims)

    def _experts(self, t: Tape, x: Value, weights: Value) -> Value:
        """This rank's experts: one grouped product for all (TEGroupedMLP), or one after the other; the same tensors are kept."""
        expert, count = self.sizes.expert, self.sizes.experts // self.split.ep
        width = Dim("f_e", expert.ffn // self.split.etp)
        up = self._product(t, x, "linear_fc1", Dim("2f_e", 2 * width.size) if expert.gated else width, count, module="expert_fc1")
        runs_again = self.style.again("moe_act")
        up = offloaded(t, up, self.style, "moe_act") if runs_again else up
        with t.recomputed(runs_again, discards=True) as again:
            inner = self._activated(t, up, width, weights, module="" if runs_again else "moe_act")
        out = self._product(t, inner, "linear_fc2", x.dims[-1], count)
        t.restored(again)
        return out

    def _activated(self, t: Tape, x: Value, width: Dim, weights: Value, *, module: str) -> Value:
        """The activation, times the routing weights: in one kernel for SwiGLU and, if asked for, squared ReLU; else a product that keeps the
        activation's result too."""
        expert, style = self.sizes.expert, self.style
        one_kernel = (expert.gated and style.glu_fused) or (expert.activation == "relu2" and style.relu_fused)
        inner = activated(t, x, width, style, gated=expert.gated, module=module)
        if one_kernel or style.late_weights:
            return inner
        out = t.new("mul", inner.dims, inner.dtype, True)
        t.step("mul", (inner, weights), (out,), saved=(inner,), made=[Made(inner, Size.of(inner.dims, inner.dtype))])
        return out

    def _product(self, t: Tape, x: Value, leaf: str, out: Dim, count: int, *, module: str = "") -> Value:
        with t.scope(leaf, x):
            weight = t.parameter("weight", (out, x.dims[-1]), count=count, share=(self.sizes.top_k, self.sizes.experts))
            bias = t.parameter("bias", (out,), count=count, share=(self.sizes.top_k, self.sizes.experts)) if self.sizes.expert.bias else None
            y = t.new("linear", (x.dims[0], out), x.dtype, True)
            inputs = tuple(v for v in (x, weight, bias) if v is not None)
            made = [Made(x, Size.of(x.dims, x.dtype)), *weight_gradients(self.style, weight), *own_gradients(bias)]
            t.step("linear", inputs, (y,), saved=kept(t, self.style, module, input_kept(t, x, self.style)), made=made)
            return y


def _moved(t: Tape, what: str, x: Value, dims: tuple[Dim, ...]) -> Value:
    """Tokens in another order or on other ranks: a copy of which autograd keeps nothing but small index lists."""
    out = t.new(what, dims, x.dtype, True)
    t.step(what, (x,), (out,), made=[Made(x, Size.of(x.dims, x.dtype))])
    return out
