"""Transformer blocks."""

from __future__ import annotations

from typing import Any, Literal

from everybyte.basics.record import Record
from everybyte.layers.common.norm import Norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.tape import Tape, Value

Held = Literal["in 0", "out 0", "in 1", "out 1"]


class Block(Record, frozen=True):
    """x + attention(norm(x)), then x + mlp(norm(x)). `post` norms sit on the branches' results (Gemma 2 and 3, GLM-4, OLMo 2)."""

    mixer: Any
    mlp: Any
    norm: Norm = Norm()
    pre: tuple[str, str] = ("input_layernorm", "post_attention_layernorm")
    """Names of the norms before the branches; empty where there is none."""
    post: tuple[str, str] = ("", "")
    after: tuple[str, str] = ("", "")
    """Names of norms on the sums (OPT-350m)."""
    mixer_name: str = "self_attn"
    mlp_name: str = "mlp"
    scaled: bool = False
    """Branch results are multiplied by a constant before the sum (Granite, MiniCPM)."""
    dropout: float = 0.0
    holds: tuple[Held, ...] = ()
    """Local variables that live until the block returns, where they are not bound anew: what the branches are given (`in`) and give (`out`)."""
    inline: bool = False
    """A branch's result is scaled or dropped out inside the sum's expression, so that it lives until the sum is made (Granite, Phi-3)."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        with t.scope(""):
            return self._forward(t, x)

    def _forward(self, t: Tape, x: Value) -> Value:
        for index, (part, name) in enumerate(((self.mixer, self.mixer_name), (self.mlp, self.mlp_name))):
            if part is None:
                continue
            pre, post, after = self.pre[index], self.post[index], self.after[index]
            branch = self.norm.forward(t, x, pre) if pre else x
            if f"in {index}" in self.holds:
                t.hold(branch)
            with t.scope(name, branch, x):
                branch = part.forward(t, branch)
            if f"out {index}" in self.holds:
                t.hold(branch)
            if post:
                branch = self.norm.forward(t, branch, post)
            with t.scope("", x, *([branch] if self.inline else [])):
                if self.scaled:
                    branch = ops.scale(t, branch)
                x = ops.add(t, x, ops.dropout(t, branch, self.dropout))
                x = self.norm.forward(t, x, after) if after else x
        return x


class ParallelBlock(Record, frozen=True):
    """x + attention(norm(x)) + mlp(norm(x)): both branches read the same input (GPT-J, Phi, Falcon, Cohere), or each its own norm (NeoX)."""

    mixer: Any
    mlp: Any
    norm: Norm = Norm("layer")
    pre: tuple[str, ...] = ("input_layernorm",)
    """One shared norm, or one for each branch."""
    mixer_name: str = "self_attn"
    mlp_name: str = "mlp"
    dropout: float = 0.0
    """On each branch."""
    sum_dropout: float = 0.0
    """On the sum of both branches (Falcon)."""
    in_place: bool = False
    """The branches' sum is written over the second's result (Falcon)."""
    residual_first: bool = False
    """x is added to attention's result, then the feed-forward layer's (Cohere, StableLM); else both branches first."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        with t.scope(""):
            return self._forward(t, x)

    def _forward(self, t: Tape, x: Value) -> Value:
        left = self.norm.forward(t, x, self.pre[0])
        if len(self.pre) == 1:
            t.hold(left)
        with t.scope(self.mixer_name, left, x):
            attention = ops.dropout(t, self.mixer.forward(t, left), self.dropout)
        right = left if len(self.pre) == 1 else self.norm.forward(t, x, self.pre[1])
        t.hold(attention)
        with t.scope(self.mlp_name, right):
            mlp = ops.dropout(t, self.mlp.forward(t, right), self.dropout)
        t.hold(mlp)
        if self.residual_first:
            return ops.add(t, ops.add(t, x, attention), mlp)
        both = ops.add_(t, mlp, attention) if self.in_place else ops.add(t, mlp, attention)
        return ops.add(t, ops.dropout(t, both, self.sum_dropout), x)


class FinalNorm(Record, frozen=True):
    """The norm behind the last block."""

    norm: Norm = Norm()
    leaf: str = "norm"
    scaled: bool = False
    """Its result is multiplied by a constant (MiniCPM)."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        out = self.norm.forward(t, x, self.leaf) if self.leaf else x
        return ops.scale(t, out) if self.scaled else out
