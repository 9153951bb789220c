"""Routers: how each token chooses its experts, and with which weights."""

from __future__ import annotations

from typing import Literal

from everybyte.basics.dtypes import BOOL, FP32, INT64
from everybyte.basics.record import Record
from everybyte.layers.recording import ops
from everybyte.layers.recording.indexing import gather, integers, normalize_, top_k, total
from everybyte.layers.recording.size import Dim, Dims
from everybyte.layers.recording.tape import Tape, Value

Score = Literal["softmax", "softmax-own", "sigmoid", "sqrtsoftplus", "chosen-softmax"]


class Router(Record, frozen=True):
    """A linear layer over the experts, a score, the top k."""

    experts: int
    top_k: int
    leaf: str = "gate"
    weight: str = "weight"
    score: Score = "softmax"
    """softmax in fp32 (`softmax-own`: in the type of the logits) or sigmoid over all experts before the choice; chosen-softmax: over the chosen logits."""
    wide: bool = False
    """The weight is stored in fp32 and the product runs in fp32 (DeepSeek)."""
    wide_scores: bool = True
    """Logits are converted to fp32 before the score."""
    normalize: Literal["", "in-place", "epsilon", "p-norm", "quotient", "clamped"] = "in-place"
    """How the chosen scores are made to sum to one: `/=`; `/=` with 1e-20 added (DeepSeek-V3); by torch.norm (DBRX); by a new tensor (DeepSeek-V4);
    by a clamped sum (ERNIE 4.5)."""
    narrow: bool = False
    """The weights return to the type of the hidden states."""
    scaled: bool = False
    """The weights are multiplied by a constant."""
    bias: bool = False
    correction: str = ""
    """Name of the buffer (in the router's module, or above it if it starts with `..`) that is added to the scores for the choice alone."""
    learned_correction: bool = False
    """The correction is a parameter that is never trained, not a buffer (ERNIE 4.5)."""
    grouped: bool = False
    """The scores of all but some groups of experts are zeroed before the choice (DeepSeek-V2)."""
    hashed_vocab: int = 0
    """Size of the table from token ids to experts that replaces the choice in the first layers of DeepSeek-V4."""

    def forward(self, t: Tape, x: Value) -> tuple[Value, Value]:
        """x (n, h) -> weights (n, top_k) and positions of the chosen experts (n, top_k)."""
        with t.scope(self.leaf):
            logits = self._logits(t, x)
            weights, chosen = self._weights(t, logits)
            if self.scaled:
                weights = ops.scale(t, weights)
            if self.narrow:
                weights = ops.cast(t, weights, x.dtype)
        t.hold(logits, weights, chosen)  # names of the caller
        return weights, chosen

    def _logits(self, t: Tape, x: Value) -> Value:
        width = Dim("E", self.experts)
        weight = t.parameter(self.weight, (width, x.dims[-1]), dtype=FP32 if self.wide else None)
        bias = t.parameter("bias", (width,)) if self.bias else None
        if self.correction:
            leaf = self.correction
            outer = t.path
            if leaf.startswith(".."):
                t.path, leaf = outer.rpartition(".")[0], leaf[2:]
            if self.learned_correction:
                t.parameter(leaf, (width,), dtype=FP32, fixed=True)
            else:
                t.buffer(leaf, (width,), FP32)
            t.path = outer
        return ops.linear(t, ops.cast(t, x, FP32) if self.wide else x, weight, bias, width)

    def _weights(self, t: Tape, logits: Value) -> tuple[Value, Value]:
        k = Dim("top", self.top_k)
        if self.score == "chosen-softmax":
            if self.wide_scores:
                logits = ops.cast(t, logits, FP32)
            values, chosen = top_k(t, logits, k)
            return ops.softmax(t, values, values.dtype), chosen
        scores = self._scores(t, logits)
        if self.hashed_vocab or self.correction:
            weights, chosen = self._choose_apart(t, scores, (scores.dims[0], k))
        else:
            if self.grouped:
                scores = self._limit_to_groups(t, scores)
            weights, chosen = top_k(t, scores, k)
        return self._normalized(t, weights), chosen

    def _scores(self, t: Tape, logits: Value) -> Value:
        if self.score == "softmax":
            return ops.softmax(t, logits, FP32)
        if self.score == "softmax-own":
            return ops.softmax(t, logits, logits.dtype)
        if self.wide_scores:
            logits = ops.cast(t, logits, FP32)
        if self.score == "sigmoid":
            return ops.unary(t, "sigmoid", logits, keeps="output")
        return ops.unary(t, "sqrt", ops.unary(t, "softplus", logits), keeps="output")

    def _choose_apart(self, t: Tape, scores: Value, dims: Dims) -> tuple[Value, Value]:
        """The choice is made outside autograd (from corrected scores, or by a table of token ids); its scores are gathered."""
        if self.hashed_vocab:
            t.buffer("tid2eid", (Dim("V", self.hashed_vocab), dims[-1]), INT64)
            chosen = integers(t, "table of experts", (), dims)
        else:
            corrected = ops.unary(t, "add", ops.detach(scores), keeps="nothing")
            chosen = integers(t, "topk positions", (corrected,), dims)
        return gather(t, scores, chosen), chosen

    def _limit_to_groups(self, t: Tape, scores: Value) -> Value:
        """`scores.masked_fill(mask, 0)`: keeps the mask."""
        mask = t.new("mask of groups", scores.dims, BOOL, False)
        t.step("mask of groups", (ops.detach(scores),), (mask,))
        out = t.new("masked_fill", scores.dims, scores.dtype, scores.grad)
        t.step("masked_fill", (scores, mask), (out,), saved=(mask,))
        return out

    def _normalized(self, t: Tape, weights: Value) -> Value:
        if not self.normalize:
            return weights
        if self.normalize in {"in-place", "epsilon"}:
            return normalize_(t, weights, epsilon=self.normalize == "epsilon")
        if self.normalize == "quotient":
            return ops.mul(t, weights, ops.unary(t, "add", total(t, weights, weights.dims[:-1]), keeps="nothing"))
        if self.normalize == "clamped":
            return ops.mul(t, weights, ops.unary(t, "clamp", total(t, weights, weights.dims[:-1])))
        norm = t.new("norm", weights.dims[:-1], weights.dtype, weights.grad)
        t.step("norm", (weights,), (norm,), saved=(weights, norm))
        return ops.mul(t, weights, norm)
