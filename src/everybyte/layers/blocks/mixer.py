"""Blocks of hybrid networks that are no attention followed by a feed-forward layer."""

from __future__ import annotations

from typing import Any

from everybyte.basics.dtypes import FP32
from everybyte.basics.record import Record
from everybyte.layers.common.linear import linear
from everybyte.layers.common.mlp import activate
from everybyte.layers.common.norm import Norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Dim
from everybyte.layers.recording.tape import Tape, Value


class MixerBlock(Record, frozen=True):
    """x + mixer(norm(x)): one mixer of any kind a block (Mamba, Nemotron-H). `wide`: the residual stream is kept in fp32."""

    mixer: Any
    norm: Norm
    wide: bool = False
    name: str = "mixer"
    norm_name: str = "norm"

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        residual = ops.cast(t, x, FP32) if self.wide else x
        branch = self.norm.forward(t, ops.cast(t, x, t.setup.norm_weights or t.setup.weights), self.norm_name)
        with t.scope(self.name, branch, residual):
            branch = self.mixer.forward(t, branch)
        return ops.add(t, residual, branch)


class TwinBlock(Record, frozen=True):
    """x + mamba(norm(x)) + attention(norm(x)), then x + mlp(norm(x)), with a constant at every branch (modeling_falcon_h1.py)."""

    mamba: Any
    attention: Any
    mlp: Any
    norm: Norm

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        branch = self.norm.forward(t, x, "input_layernorm")
        with t.scope("mamba", branch, x):
            left = self.mamba.forward(t, branch)
        left, branch = ops.scale(t, left), ops.scale(t, branch)
        with t.scope("self_attn", branch, left, x):
            right = self.attention.forward(t, branch)
        x = ops.add(t, x, ops.add(t, left, ops.scale(t, right)))
        branch = self.norm.forward(t, x, "pre_ff_layernorm")
        with t.scope("feed_forward", branch, x):
            branch = self.mlp.forward(t, branch)
        return ops.add(t, x, branch)


class ScaledMLP(Record, frozen=True):
    """down(up(x)·act(c·gate(x)))·c, with constants c (modeling_falcon_h1.py FalconH1MLP)."""

    hidden: int
    ffn: int
    activation: str = "silu"
    bias: bool = False

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        width = Dim("f", self.ffn)
        up = linear(t, x, "up_proj", width, bias=self.bias)
        gate = activate(t, ops.scale(t, linear(t, x, "gate_proj", width, bias=self.bias)), self.activation)
        return ops.scale(t, linear(t, ops.mul(t, up, gate), "down_proj", Dim("h", self.hidden), bias=self.bias))
