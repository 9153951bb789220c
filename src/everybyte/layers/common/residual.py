"""Attention residuals: a branch reads not the sum of all branches before it but a learned mixture of the sums of whole groups of layers
(Kimi K3; SGLang srt/layers/attn_residual.py)."""

from __future__ import annotations

from typing import Any

from everybyte.basics.dtypes import FP32
from everybyte.basics.record import Record
from everybyte.layers.common.norm import rms_norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import TOKENS, Dim
from everybyte.layers.recording.tape import Tape, Value


class ResidualBlock(Record, frozen=True):
    """A decoder block whose two branches read mixtures of `blocks` earlier groups' sums and the running sum x."""

    mixer: Any
    mlp: Any
    blocks: int
    opens: bool
    """The running sum ends a group here and starts anew."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        branch = mixture(t, x, self.blocks, "self_attention_res") if self.blocks else x
        branch = rms_norm(t, branch, "input_layernorm")
        with t.scope("self_attn", branch, x):
            branch = self.mixer.forward(t, branch)
        if not self.opens:
            branch = ops.add(t, x, branch)
        x = branch
        branch = rms_norm(t, mixture(t, x, self.blocks + self.opens, "mlp_res"), "post_attention_layernorm")
        with t.scope("mlp", branch, x):
            branch = self.mlp.forward(t, branch)
        return ops.add(t, x, branch)


class ResidualTail(Record, frozen=True):
    """The last mixture and the final norm."""

    blocks: int
    leaf: str

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        return rms_norm(t, mixture(t, x, self.blocks, "model.output_attn_res"), self.leaf)


def mixture(t: Tape, x: Value, blocks: int, leaf: str) -> Value:
    """softmax over groups of a learned score of each normed sum, times the sums: in fp32, back in the type of x. The groups' sums belong to the
    network, not to one block."""
    hidden, count = x.dims[-1], Dim("i", blocks + 1)
    earlier = t.from_outside("sums of groups", (*x.dims[:-1], Dim("i", blocks), hidden), x.dtype)
    values = ops.cat(t, (earlier, x), (TOKENS, count, hidden))
    normal = ops.cast(t, rms_norm(t, values, f"{leaf}_norm"), FP32)
    with t.scope(f"{leaf}_proj"):
        weight = ops.cast(t, t.parameter("weight", (Dim("1", 1), hidden)), FP32)
        scores = ops.linear(t, normal, weight, None, Dim("1", 1))
    shares = ops.softmax(t, ops.view(scores, (TOKENS, count)), FP32)
    return ops.cast(t, ops.matmul(t, shares, ops.cast(t, values, FP32), x.dims), x.dtype)
