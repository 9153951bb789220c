"""torchtitan's mixture of experts (torchtitan/models/moe, taken over by prime-rl): tokens are sorted by expert, three grouped products, a sum by index."""

from __future__ import annotations

from typing import Any, Literal

from everybyte.basics.dtypes import FP32, INT32
from everybyte.basics.record import Record
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import activate, fused_glu
from everybyte.layers.recording import ops
from everybyte.layers.recording.indexing import gather, integers, top_k
from everybyte.layers.recording.size import Dim, Dims, Size, arriving, routed
from everybyte.layers.recording.tape import Made, Tape, Value


class TokenChoice(Record, frozen=True):
    """MoE: TokenChoiceTopKRouter, TokenReorderer, GroupedExperts and a shared expert. `held`: experts of this rank."""

    hidden: int
    ffn: int
    experts: int
    top_k: int
    score: Literal["softmax", "sigmoid"] = "softmax"
    bias: bool = True
    """Experts are chosen with a bias that balances their load; their scores are gathered."""
    normalize: bool = True
    score_first: bool = False
    """Tokens are multiplied by their scores before the experts, not after."""
    held: int = 0
    """Experts whose weights this rank has; 0: all. Tokens are sent to their experts' ranks and back."""
    shared: Any = None
    """A Layer that every token passes."""
    shared_name: str = "shared_experts"

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        scores, chosen = self._route(t, x)
        every = (routed(self.top_k),)
        order = integers(t, "order of tokens", (chosen,), every)
        sorted_scores = t.new("scores", every, FP32, scores.grad)
        t.step("index", (scores, order), (sorted_scores,), saved=(order,))
        token = integers(t, "token of each row", (order,), every)
        t.hold(scores, chosen, sorted_scores, token)
        rows = t.new("gather", (*every, x.dims[-1]), x.dtype, x.grad)
        t.step("gather", (x, token), (rows,), saved=(token,))
        if self.score_first:
            rows = self._weighted(t, rows, sorted_scores)
        t.hold(rows)
        with t.scope("experts", rows):
            out = self._spread(t, rows)
        if not self.score_first:
            out = self._weighted(t, out, sorted_scores)
        t.hold(out)
        return self._collect(t, x, token, out)

    def _route(self, t: Tape, x: Value) -> tuple[Value, Value]:
        """Scores (n, top_k) in fp32 and experts of each token."""
        k = Dim("top", self.top_k)
        with t.scope("router"):
            logits = ops.cast(t, linear(t, x, "gate", Dim("E", self.experts)), FP32)
            scores = ops.softmax(t, logits, FP32) if self.score == "softmax" else ops.unary(t, "sigmoid", logits, keeps="output")
            if self.bias:
                chosen = integers(t, "topk positions", (ops.detach(scores),), (x.dims[0], k))
                best = gather(t, scores, chosen)
            else:
                best, chosen = top_k(t, scores, k)
            if self.normalize:
                divisor = t.new("sum", best.dims[:-1], FP32, best.grad)
                t.step("sum", (best,), (divisor,), made=[Made(best, None)])
                best = ops.mul(t, best, divisor)
            best = ops.scale(t, best)
        return best, chosen

    def _weighted(self, t: Tape, x: Value, scores: Value) -> Value:
        """`(x.to(fp32) * scores).to(bf16)`; compiled it is one kernel that reads x again."""
        if t.setup.kernels.mlp == "fused":
            out = t.new("weighted", x.dims, x.dtype, x.grad)
            t.step("mul", (x, scores), (out,), saved=(x, scores))
            return out
        return ops.cast(t, ops.mul(t, ops.cast(t, x, FP32), scores), x.dtype)

    def _spread(self, t: Tape, x: Value) -> Value:
        """The experts, on this rank or on several."""
        if not self.held:
            return self._grouped(t, x)
        arrived = arriving(self.top_k, self.experts // self.held, self.held)
        own = ops.contiguous(t, _exchanged(t, x, (arrived, *x.dims[1:])))
        back = ops.contiguous(t, self._grouped(t, own))
        return _exchanged(t, back, x.dims)

    def _grouped(self, t: Tape, x: Value) -> Value:
        """silu(x·w1)·(x·w3)·w2 with one product for all experts, and adapters beside each."""
        offsets = t.new("offsets", (Dim("E", self.experts),), INT32, False)
        t.step("cumsum", (), (offsets,))
        width, hidden = Dim("f", self.ffn), x.dims[-1]
        gate = self._product(t, x, "w1", width, offsets)
        if t.setup.kernels.mlp == "fused":
            inner = fused_glu(t, gate, self._product(t, x, "w3", width, offsets))
        else:
            act = activate(t, gate, "silu")
            inner = ops.mul(t, act, self._product(t, x, "w3", width, offsets))
        return self._product(t, inner, "w2", hidden, offsets)

    def _product(self, t: Tape, x: Value, leaf: str, out: Dim, offsets: Value) -> Value:
        count = Dim("E", self.held or self.experts)
        weight = t.parameter(leaf, (count, out, x.dims[-1]), share=(self.top_k, self.experts))
        y = _grouped_mm(t, x, weight, out, offsets)
        adapter = t.setup.adapter
        if adapter is None or not adapter.covers(t.path):
            return y
        rank, runs = Dim("q", adapter.rank), adapter.option("runs", 1)
        down = t.parameter(f"{leaf}_lora_A", (count, rank, x.dims[-1]), count=runs, dtype=adapter.dtype, adapter=True)
        up = t.parameter(f"{leaf}_lora_B", (count, out, rank), count=runs, dtype=adapter.dtype, adapter=True)
        low = _grouped_mm(t, x, down, rank, offsets)
        return ops.add(t, y, ops.scale(t, _grouped_mm(t, low, up, out, offsets)))

    def _collect(self, t: Tape, x: Value, token: Value, rows: Value) -> Value:
        """`out.scatter_add(0, index, rows)` on the shared expert's result, or on zeros: a new tensor, which keeps the index."""
        if self.shared is not None:
            with t.scope(self.shared_name, x):
                into: Value = self.shared.forward(t, x)
        else:
            into = ops.made(t, "zeros", x.dims, x.dtype)
        out = t.new("scatter_add", x.dims, x.dtype, rows.grad or into.grad)
        made = [Made(into, None), Made(rows, Size.of(rows.dims, rows.dtype))]
        t.step("scatter_add", (into, rows, token), (out,), saved=(token,), made=made)
        return out


def _grouped_mm(t: Tape, x: Value, weight: Value, out: Dim, offsets: Value) -> Value:
    y = t.new("grouped_mm", (*x.dims[:-1], out), x.dtype, x.grad or weight.grad)
    t.step("grouped_mm", (x, weight, offsets), (y,), saved=([weight] if x.grad else []) + ([x] if weight.grad else []) + [offsets])
    return y


def _exchanged(t: Tape, x: Value, dims: Dims) -> Value:
    """all_to_all_single."""
    out = t.new("all_to_all", dims, x.dtype, x.grad)
    t.step("all_to_all", (x,), (out,))
    return out
