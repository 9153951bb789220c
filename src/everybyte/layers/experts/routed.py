"""Routed experts: equal feed-forward networks of which each token uses a few.

Two implementations: `grouped`, where the tokens are sorted by expert and one grouped product runs all experts (transformers 5,
integrations/moe.py), and `loop`, one expert after the other over its share of the tokens (transformers before 5).
"""

from __future__ import annotations

from typing import Literal

from everybyte.basics.dtypes import FP32, INT32, INT64
from everybyte.basics.record import Record
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import activate
from everybyte.layers.recording import ops
from everybyte.layers.recording.indexing import integers, rows, total
from everybyte.layers.recording.size import ZERO, Dim, Dims, Size, expert_share, routed
from everybyte.layers.recording.tape import Made, Storage, Tape, Value

MANY = 64
"""More experts than these are taken several at a time in the account of a loop."""
Clamp = Literal["", "before", "after", "oai", "situ"]


class Gate(Record, frozen=True):
    """The product of gate and up inside an expert (or a dense layer of the same model).

    `clamp`: none; both clamped before the activation (DeepSeek-V4); the gate after it (Step 3.5); `oai`: gate·σ(α·gate)·(up + 1), both clamped (gpt-oss);
    `situ`: β·tanh(gate/β)·σ(gate)·β'·tanh(up/β') in fp32 (Kimi K3).
    """

    activation: str = "silu"
    clamp: Clamp = ""
    interleaved: bool = False
    """Gate and up lie alternately in the joined product, not one after the other."""

    def joined(self, t: Tape, both: Value, width: Dim) -> Value:
        """both (..., 2f) -> (..., f)."""
        dims = (*both.dims[:-1], width)
        gate, up = (ops.narrow(t, both, dims) for _ in range(2)) if self.interleaved else ops.split(t, both, [dims] * 2)
        return self.product(t, gate, up)

    def product(self, t: Tape, gate: Value, up: Value) -> Value:
        """gate, up (..., f) -> (..., f)."""
        if self.clamp == "oai":
            gate, up = clamp(t, gate), clamp(t, up)
            glu = ops.mul(t, gate, ops.unary(t, "sigmoid", ops.scale(t, gate), keeps="output"))
            out = ops.mul(t, ops.unary(t, "add", up, keeps="nothing"), glu)
            t.drop(gate, up, glu)
            return out
        if self.clamp == "situ":
            return self._situ(t, gate, up)
        if self.clamp == "before":
            gate, up = clamp(t, gate), clamp(t, up)
        gate = activate(t, gate, self.activation)
        if self.clamp == "after":
            gate, up = clamp(t, gate), clamp(t, up)
        return ops.mul(t, gate, up)

    def _situ(self, t: Tape, gate: Value, up: Value) -> Value:
        dtype = gate.dtype
        gate, up = ops.cast(t, gate, FP32), ops.cast(t, up, FP32)
        bounded = ops.scale(t, ops.unary(t, "tanh", ops.scale(t, gate), keeps="output"))
        gate = ops.mul(t, bounded, ops.unary(t, "sigmoid", gate, keeps="output"))
        up = ops.scale(t, ops.unary(t, "tanh", ops.scale(t, up), keeps="output"))
        return ops.cast(t, ops.mul(t, gate, up), dtype)


def clamp(t: Tape, x: Value) -> Value:
    """`x.clamp(low, high)`: keeps its input."""
    return ops.unary(t, "clamp", x, keeps="input")


def packs_stacked(t: Tape, leaf: str) -> bool:
    """Whether the weight `leaf`, three-dimensional with all experts in it, is in the packed format."""
    packed = t.setup.packed
    return packed is not None and packed.experts and packed.covers(t.name(leaf))


def read_stacked(t: Tape, weight: Value) -> Value:
    """A packed three-dimensional weight as the product reads it: a parametrisation dequantises all experts at once (bitsandbytes
    nn/parametrize.py), unless the kernels multiply packed numbers."""
    if t.setup.packed is not None and t.setup.packed.computes:
        return weight
    dense = t.new("dequantised", weight.dims, weight.dtype, False)
    t.step("dequantise", (weight,), (dense,))
    return dense


class Experts(Record, frozen=True):
    """`count` experts of width `ffn` over inputs of width `hidden`; each token uses `top_k` of them."""

    hidden: int
    ffn: int
    count: int
    top_k: int
    gate: Gate | None = Gate()
    """None: down(activation(up(x))) without a gate."""
    activation: str = "silu"
    """Of experts without a gate."""
    bias: bool = False
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    """Names of an expert's layers where each expert is a module of its own."""
    looped: Literal["", "stacked", "flat"] = ""
    """The model has a loop only, over parts of stacked weights: `stacked` as `_grouped` has them (Step 3.7), `flat` with the rows of all experts
    under one another (DBRX)."""

    @property
    def share(self) -> tuple[int, int]:
        """What part of the experts one token uses."""
        return self.top_k, self.count

    def forward(self, t: Tape, x: Value, weights: Value, chosen: Value) -> Value:
        """x (n, h), weights and positions (n, top_k) -> (n, h)."""
        if self.looped or t.setup.kernels.experts != "grouped":
            return self._loop(t, x, weights if self.looped else ops.cast(t, weights, x.dtype), chosen)
        return self._grouped(t, x, weights, chosen)

    # -- grouped --------------------------------------------------------------------------------------------------------------
    def _grouped(self, t: Tape, x: Value, weights: Value, chosen: Value) -> Value:
        """Most of what is made here has a name until the function returns."""
        every = (routed(self.top_k),)
        by_expert, order = integers(t, "sorted experts", (chosen,), every), t.new("order of tokens", every, INT64, False)
        t.step("sort", (chosen,), (by_expert, order))
        hidden = Dim("h", self.hidden)
        selected = rows(t, x, integers(t, "token of each row", (order,), every), (*every, hidden))
        picked = rows(t, weights, order, every)
        narrow, offsets = t.new("sorted experts", every, INT32, False), t.new("offsets", (Dim("E", self.count),), INT32, False)
        t.step("histc", (by_expert,), (narrow,))
        t.step("cumsum", (narrow,), (offsets,))
        t.hold(by_expert, order, selected, picked, narrow, offsets)
        inner, bias = self._inner(t, selected, by_expert, offsets)
        out, last_bias = self._grouped_linear(t, inner, "down_proj", hidden, by_expert, offsets, bias)
        weighted = ops.mul(t, out, picked)
        back = t.new("order back", every, INT64, False)
        t.step("index_put_", (order,), (back,), scratch=Size.of(every, INT64))
        t.hold(out, back, *last_bias)
        restored = rows(t, weighted, back, weighted.dims)
        sums = total(t, restored, (x.dims[0], hidden))
        t.drop(restored)
        return ops.cast(t, sums, x.dtype)

    def _inner(self, t: Tape, selected: Value, by_expert: Value, offsets: Value) -> tuple[Value, tuple[Value, ...]]:
        """Up to the activation or the product with it, and the rows of the bias that are still held."""
        width = Dim("f", self.ffn)
        if self.gate is None:
            up, bias = self._grouped_linear(t, selected, "up_proj", width, by_expert, offsets)
            return activate(t, up, self.activation), bias
        both, bias = self._grouped_linear(t, selected, "gate_up_proj", Dim("2f", 2 * self.ffn), by_expert, offsets)
        return self.gate.joined(t, both, width), bias

    def _grouped_linear(
        self, t: Tape, x: Value, leaf: str, out: Dim, by_expert: Value, offsets: Value, before: tuple[Value, ...] = ()
    ) -> tuple[Value, tuple[Value, ...]]:
        """One product for all experts, and the rows of its bias. It is no autocast operation: the input takes the type of the weight.
        `before`: the rows of the bias that had the same name."""
        count = Dim("E", self.count)
        packed = packs_stacked(t, leaf)
        weight = t.parameter(leaf, (count, out, x.dims[-1]), share=self.share, packed=packed)
        bias = None
        if self.bias:
            table = t.parameter(f"{leaf}_bias", (count, out), share=self.share)
            bias = rows(t, table, by_expert, (*x.dims[:-1], out))
        if packed:
            weight = read_stacked(t, weight)
        x = ops.cast(t, x, weight.dtype)
        y = t.new("grouped_mm", (*x.dims[:-1], out), x.dtype, x.grad or weight.grad)
        t.step("grouped_mm", (x, weight, offsets), (y,), saved=([weight] if x.grad else []) + ([x] if weight.grad else []) + [offsets])
        return (y, ()) if bias is None else (ops.add_(t, y, bias), (bias,))

    # -- loop -----------------------------------------------------------------------------------------------------------------
    def _loop(self, t: Tape, x: Value, weights: Value, chosen: Value) -> Value:
        """One expert after the other over its balanced share of the tokens; their results are added into one tensor. A mask (n, top_k, E) in
        int64 says which expert has which token."""
        t.hold(integers(t, "mask of experts", (chosen,), (routed(self.top_k), Dim("E", self.count + 1 if self.looped else self.count))))
        result = ops.made(t, "zeros", x.dims, x.dtype)
        several = self._taken_together(t)
        share = expert_share(self.top_k, self.count // several)
        for index in range(0, self.count, several):
            token = integers(t, "tokens of the expert", (), (share,))
            position = integers(t, "positions of the expert", (), (share,))
            mine = rows(t, x, token, (share, x.dims[-1]))
            if self.looped:
                current = self._part(t, mine)
            else:
                with t.scope(str(index)):
                    current = self._expert(t, mine, several)
            picked = _pick(t, weights, token, position)
            result = _index_add(t, result, token, ops.cast(t, ops.mul(t, current, picked), x.dtype))
        return result

    def _taken_together(self, t: Tape) -> int:
        """How many experts stand for one in the account of a loop over very many: what is kept is the same, and the answer is there sooner."""
        if not self.looped and (t.setup.packed is not None or t.setup.adapter is not None):
            return 1
        return next((n for n in range(1, self.count // 16) if self.count % n == 0 and self.count // n <= MANY), 1)

    def _part(self, t: Tape, x: Value) -> Value:
        """One expert, whose weights are parts of stacked ones."""
        width, hidden = Dim("f", self.ffn), x.dims[-1]
        gate = self.gate or Gate()
        if self.looped == "stacked":
            both = ops.linear(t, x, self._select(t, "gate_up_proj", (Dim("2f", 2 * self.ffn), hidden)), None, Dim("2f", 2 * self.ffn))
            return ops.linear(t, gate.joined(t, both, width), self._select(t, "down_proj", (hidden, width)), None, hidden)
        first, second, last = self.names
        parts = [self._select(t, leaf, (width, hidden)) for leaf in (second, first, last)]
        inner = gate.product(t, ops.linear(t, x, parts[1], None, width), ops.linear(t, x, parts[0], None, width))
        return ops.linear(t, inner, parts[2], None, hidden)

    def _select(self, t: Tape, leaf: str, dims: Dims) -> Value:
        """One expert's part of a stacked weight: a view, whose backward makes a gradient of the whole that is zero elsewhere."""
        rest: Dims = (Dim(f"E{dims[0].letter}", self.count * dims[0].size), *dims[1:]) if self.looped == "flat" else (Dim("E", self.count), *dims)
        weight = t.parameter(leaf, rest, share=self.share)
        out = Value(Storage(ZERO, t.path, "select", dims, weight.dtype, persistent=True, outside=True), dims, weight.dtype, weight.grad)
        t.step("select", (weight,), (out,), made=[Made(weight, Size.of(rest, weight.dtype))] if weight.grad else [])
        return out

    def _expert(self, t: Tape, x: Value, several: int) -> Value:
        first, second, last = self.names
        width, hidden = Dim("f", self.ffn), Dim("h", self.hidden)
        if self.gate is None:
            inner = activate(t, self._one(t, x, second, width, several), self.activation)
        else:
            gate = self._one(t, x, first, width, several)
            inner = self.gate.product(t, gate, self._one(t, x, second, width, several))
        return self._one(t, inner, last, hidden, several)

    def _one(self, t: Tape, x: Value, leaf: str, out: Dim, several: int) -> Value:
        if several == 1:
            return linear(t, x, leaf, out, bias=self.bias, share=self.share)
        with t.scope(leaf):
            weight = t.parameter("weight", (Dim("e", several), out, x.dims[-1]), share=self.share)
            bias = t.parameter("bias", (Dim("e", several), out), share=self.share) if self.bias else None
            return ops.linear(t, x, weight, bias, out)


def _pick(t: Tape, weights: Value, token: Value, position: Value) -> Value:
    """`weights[token, position]`: keeps both index tensors."""
    out = t.new("index", token.dims, weights.dtype, weights.grad)
    t.step("index", (weights, token, position), (out,), saved=(token, position))
    return out


def _index_add(t: Tape, into: Value, index: Value, source: Value) -> Value:
    """`into.index_add_(0, index, source)`: keeps the index and the source, whose shape its backward reads."""
    out = Value(into.storage, into.dims, into.dtype, source.grad or into.grad)
    made = [Made(into, None), Made(source, Size.of(source.dims, source.dtype))]
    t.step("index_add_", (into, source, index), (out,), saved=(index, source), made=made)
    return out


class JoinedMLP(Record, frozen=True):
    """A dense feed-forward layer written like an expert: one projection to gate and up, their product, one projection back (MiniMax-M3)."""

    hidden: int
    ffn: int
    gate: Gate

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        both = linear(t, x, "gate_up_proj", Dim("2f", 2 * self.ffn))
        return linear(t, self.gate.joined(t, both, Dim("f", self.ffn)), "down_proj", Dim("h", self.hidden))


class GatedProduct(Record, frozen=True):
    """A dense feed-forward layer whose gate and up are two projections, and their product as the experts beside it
    write it (DeepSeek-V4, Step 3.5, Kimi K3)."""

    hidden: int
    ffn: int
    gate: Gate
    bias: bool = False

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        width = Dim("f", self.ffn)
        gate, up = (linear(t, x, leaf, width, bias=self.bias) for leaf in ("gate_proj", "up_proj"))
        return linear(t, self.gate.product(t, gate, up), "down_proj", Dim("h", self.hidden), bias=self.bias)
