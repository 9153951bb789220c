"""Mixture of experts: a router, routed experts, and what stands beside them."""

from __future__ import annotations

from typing import Any

from everybyte.basics.record import Record
from everybyte.layers.common.linear import linear
from everybyte.layers.common.norm import rms_norm
from everybyte.layers.experts.routed import Experts
from everybyte.layers.experts.router import Router
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Dim
from everybyte.layers.recording.tape import Tape, Value


class MoE(Record, frozen=True):
    """Σ weight·expert(x) over the chosen experts, plus a shared expert that every token uses."""

    hidden: int
    router: Router
    experts: Experts
    shared: Any = None
    """A Layer that every token passes."""
    shared_name: str = "shared_experts"
    shared_first: bool = False
    """The shared expert runs before the routed ones."""
    shared_gate: str = ""
    """Name of a linear layer to one number whose sigmoid scales the shared expert's result (Qwen)."""
    experts_name: str = "experts"
    scaled: bool = False
    """The routed experts' result is multiplied by a constant."""
    latent_norm: str = ""
    """Name of a norm on the routed experts' result in that space (Kimi K3)."""
    latent: tuple[str, str] = ("", "")
    """Names of projections into and out of the narrower space in which the experts work (Nemotron 3)."""

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        shared = self._shared(t, x) if self.shared is not None and self.shared_first else None
        weights, chosen = self.router.forward(t, x)
        inner = linear(t, x, self.latent[0], Dim("l", self.experts.hidden)) if self.latent[0] else x
        with t.scope(self.experts_name, inner, weights, chosen):
            out = self.experts.forward(t, inner, weights, chosen)
        if self.latent_norm:
            out = rms_norm(t, out, self.latent_norm)
        if self.latent[1]:
            out = linear(t, out, self.latent[1], Dim("h", self.hidden))
        if self.scaled:
            out = ops.scale(t, out)
        if self.shared is None:
            return out
        if shared is None:
            shared = self._shared(t, x)
        if self.shared_gate:
            share = ops.unary(t, "sigmoid", linear(t, x, self.shared_gate, Dim("1", 1)), keeps="output")
            shared = ops.mul(t, share, shared)
        return ops.add(t, out, shared)

    def _shared(self, t: Tape, x: Value) -> Value:
        with t.scope(self.shared_name, x):
            out: Value = self.shared.forward(t, x)
        return out
