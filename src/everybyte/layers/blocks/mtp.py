"""Multi-token prediction: a further block that predicts one token more (DeepSeek-V3, Megatron-LM multi_token_prediction.py)."""

from __future__ import annotations

from typing import Any

from everybyte.basics.record import Record
from everybyte.layers.common.linear import linear
from everybyte.layers.common.norm import Norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Dim
from everybyte.layers.recording.tape import Tape, Value


class NextToken(Record, frozen=True):
    """norm(block(project(norm(next token's embedding), norm(x))))."""

    hidden: int
    block: Any
    """A Layer: the transformer block inside."""
    norm: Norm

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        following = t.from_outside("embedding", x.dims, x.dtype)
        pair = (self.norm.forward(t, following, "enorm"), self.norm.forward(t, x, "hnorm"))
        both = ops.cat(t, pair, (*x.dims[:-1], Dim("2h", 2 * self.hidden)))
        joined = linear(t, both, "eh_proj", Dim("h", self.hidden))
        return self.norm.forward(t, self.block.forward(t, joined), "final_layernorm")
