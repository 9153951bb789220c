"""torchtitan's head and losses (components/loss.py): on all logits, eager or compiled, over a divided vocabulary, or chunk by chunk."""

from __future__ import annotations

from typing import Literal

from everybyte.basics.dtypes import FP32
from everybyte.basics.record import Record
from everybyte.engines.torchtitan.block import Group
from everybyte.layers.common.linear import linear
from everybyte.layers.common.norm import Norm
from everybyte.layers.heads.loss import cross_entropy
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Dim, Size, chunk_tokens
from everybyte.layers.recording.tape import Made, Tape, Value

Kind = Literal["eager", "compiled", "parallel", "chunked-logits", "chunked-head"]


class TitanHead(Record, frozen=True):
    """Final norm, which is never compiled, the head's product and the loss. `vocab`: entries of this rank."""

    vocab: int
    norm: Norm
    group: Group
    loss: Kind
    chunks: int = 8
    tied: bool = False
    leaf: str = "output"

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n/t, h) -> the loss."""
        x = self.group.gathered(t, self.norm.forward(t, x, "norm"))
        if self.loss == "chunked-head":
            return self._chunked_head(t, x)
        with t.scope("loss"):
            logits = self._logits(t, x)
            t.hold(logits)
            return self._entropy(t, logits)

    def _logits(self, t: Tape, x: Value) -> Value:
        width = Dim("V", self.vocab)
        if self.tied:
            with t.scope(self.leaf):
                return ops.linear(t, x, t.parameter("weight", (width, x.dims[-1]), tied=True), None, width)
        return linear(t, x, self.leaf, width)

    def _entropy(self, t: Tape, logits: Value) -> Value:
        if self.loss == "eager":
            return cross_entropy(t, ops.cast(t, logits, FP32))
        if self.loss == "compiled":
            return compiled_entropy(t, logits)
        if self.loss == "parallel":
            return parallel_entropy(t, logits)
        return self._chunked_logits(t, logits)

    def _chunked_logits(self, t: Tape, logits: Value) -> Value:
        """`logits.chunk(8, dim=1)`, a cross entropy on each, their sum; from 2025-03 until the loss took the head in as well."""
        rows = chunk_tokens(self.chunks)
        parts = ops.split(t, logits, [(rows, *logits.dims[1:])] * self.chunks)
        losses = [cross_entropy(t, ops.cast(t, part, FP32)) for part in parts]
        out = t.new("loss", (), FP32, logits.grad)
        t.step("sum", losses, (out,))
        return out

    def _chunked_head(self, t: Tape, x: Value) -> Value:
        """ChunkedLossWrapper: hidden states are detached and cut; each part goes through head, loss and their backward; the gradients of the hidden
        states are written into one fp32 tensor, which is cast and kept. FSDP adds up the head's gradients of all but the last part in fp32."""
        width = Dim("V", self.vocab)
        with t.scope(self.leaf):
            weight = t.parameter("weight", (width, x.dims[-1]), tied=self.tied)
        with t.scope("loss", x):
            rows = (chunk_tokens(self.chunks), *x.dims[1:])
            copies = [t.new("chunk", rows, x.dtype, False) for _ in range(self.chunks)]
            t.step("chunk", (ops.detach(x),), copies)
            total = t.new("gradient of hidden states", x.dims, FP32, False)
            t.step("zeros", (), (total,))
            t.hold(total, *copies)
            head = t.new("gradient of head", weight.dims, FP32, False)
            head.storage.role = "gradient"
            t.step("zeros", (), (head,))
            for part in copies:
                self._part(t, part, weight, total, head)
            gradient = t.new("gradient of hidden states", x.dims, x.dtype, False)
            t.step("to", (total,), (gradient,))
        out = t.new("loss", (), FP32, x.grad)
        made = [Made(x, None, into=gradient.storage), Made(weight, None, into=head.storage)]
        t.step("loss", (x, weight), (out,), saved=(gradient, head), made=made)
        return out

    def _part(self, t: Tape, part: Value, weight: Value, total: Value, head: Value) -> None:
        """Head, eager cross entropy and backward of one part; the loop's variable holds its logits until the next part has its own."""
        dims = (part.dims[0], Dim("V", self.vocab))
        logits = t.new("linear", dims, part.dtype, False)
        t.step("linear", (part, ops.detach(weight)), (logits,))
        wide, logs, picked, slope = (t.new(what, dims, FP32, False) for what in ("to", "log_softmax", "nll_loss_backward", "log_softmax_backward"))
        t.step("to", (logits,), (wide,))
        t.step("log_softmax", (wide,), (logs,))
        t.step("nll_loss_backward", (logs,), (picked,))
        t.step("log_softmax_backward", (picked, logs), (slope,))
        narrow = t.new("to", dims, part.dtype, False)
        t.step("to", (slope, logits), (narrow,))
        fresh, below = t.new("gradient of head", weight.dims, part.dtype, False), t.new("gradient of chunk", part.dims, part.dtype, False)
        t.step("linear_backward", (narrow, logits), (fresh, below))
        t.step("add", (fresh, below, total, head, logits), ())


def compiled_entropy(t: Tape, logits: Value) -> Value:
    """torch.compile of `cross_entropy(logits.float(), labels)`: one kernel reads the 16-bit logits, which are kept with two numbers a row; one writes
    their gradient."""
    out = t.new("loss", (), FP32, logits.grad)
    stats = [t.new(what, logits.dims[:-1], FP32, False) for what in ("highest", "log-sum-exp")]
    t.step("cross_entropy", (logits,), (out, *stats), saved=(logits, *stats))
    return out


def parallel_entropy(t: Tape, logits: Value) -> Value:
    """Over a divided vocabulary (torch distributed/tensor/parallel/loss.py): x - max, its exponential for the sum, and their logarithm are tensors
    of their own; backward makes zeros, the exponential, their sum and its product with the gradient."""
    x = ops.cast(t, logits, FP32)
    with t.scope("", x):
        shifted = t.new("sub", x.dims, FP32, x.grad)
        t.step("sub", (x,), (shifted,), made=[Made(x, None)])
        exponential = t.new("exp", x.dims, FP32, False)
        t.step("exp", (ops.detach(shifted),), (exponential,))
        logs = t.new("log_softmax", x.dims, FP32, x.grad)
        whole = Size.of(x.dims, FP32)
        t.step("log_softmax", (shifted,), (logs,), saved=(logs,), back_scratch=whole)
    out = t.new("loss", (), FP32, x.grad)
    t.step("nll_loss", (logs,), (out,), saved=(logs,), back_scratch=whole)
    return out
