"""Multi-head latent attention: queries, keys and values are projected through narrow latents, of which only the key-value one is cached."""

from __future__ import annotations

from typing import Any

from everybyte.basics.record import Record
from everybyte.layers.attention.kernels import SCORES, Heads, attend
from everybyte.layers.common.linear import linear
from everybyte.layers.common.norm import rms_norm
from everybyte.layers.common.rope import rotary, rotary_complex
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import Dim, Size
from everybyte.layers.recording.tape import Made, Tape, Value


class MLA(Record, frozen=True):
    """Attention of DeepSeek-V2 and its successors (modeling_deepseek_v3.py), keys and values written out for every head."""

    hidden: int
    heads: int
    q_rank: int
    """Width of the queries' latent; 0: projected at once."""
    kv_rank: int
    nope: int
    rope: int
    v_dim: int
    bias: bool = False
    dropout: float = 0.0
    turned: bool = True
    """Rotary positions are used (Kimi Linear has none)."""
    complex_rope: bool = False
    gate: str = ""
    """Name of a projection whose sigmoid scales the result (Kimi K3)."""
    indexer: Any = None
    """What chooses the keys that are looked at (DeepSeek sparse attention); it runs outside autograd."""
    sparse: bool = False
    """Only chosen keys are looked at: SDPA and eager attention get a mask of this layer's own."""

    @property
    def q_dim(self) -> int:
        """Width of a query or key head."""
        return self.nope + self.rope

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        sizes = Heads(self.heads, self.heads, self.q_dim, self.v_dim)
        q, q_latent = self._queries(t, x, sizes)
        latent, turn = self._latent(t, x)
        t.hold(q, latent, turn)
        if self.turned:
            q, turn = self._turn(t, q, turn)
        latent, turn = ops.remember(t, "latent", latent), ops.remember(t, "rotary key", turn)
        k, v = self._expand(t, latent, turn, sizes)
        t.hold(q, k, v)
        if self.indexer is not None:
            with t.scope("indexer", q, k, v, q_latent), t.silence():
                self.indexer.forward(t, x, q_latent)
        mask = ops.made(t, "attention mask", (SCORES,), q.dtype) if self.sparse else None
        out = attend(t, q, k, v, sizes, dropout=self.dropout, bias=mask)
        if self.gate:
            out = ops.mul(t, out, ops.unary(t, "sigmoid", linear(t, x, self.gate, sizes.out_width), keeps="output"))
        return linear(t, out, "o_proj", Dim("h", self.hidden), bias=self.bias)

    def _queries(self, t: Tape, x: Value, sizes: Heads) -> tuple[Value, Value]:
        if not self.q_rank:
            return linear(t, x, "q_proj", sizes.q_width), x
        latent = rms_norm(t, linear(t, x, "q_a_proj", Dim("r_q", self.q_rank), bias=self.bias), "q_a_layernorm")
        return linear(t, latent, "q_b_proj", sizes.q_width), latent

    def _latent(self, t: Tape, x: Value) -> tuple[Value, Value]:
        """The latent of keys and values after its norm, and the part of the keys that is turned, one for all heads."""
        both = linear(t, x, "kv_a_proj_with_mqa", Dim("(r_kv+d_r)", self.kv_rank + self.rope), bias=self.bias)
        latent, turn = ops.split(t, both, [(x.dims[0], Dim("r_kv", self.kv_rank)), (x.dims[0], Dim("d_r", self.rope))])
        return rms_norm(t, latent, "kv_a_layernorm"), turn

    def _turn(self, t: Tape, q: Value, turn: Value) -> tuple[Value, Value]:
        kind = rotary_complex if self.complex_rope else rotary
        straight = (q.dims[0], Dim("a·d_n", self.heads * self.nope))
        turned = (q.dims[0], Dim("a·d_r", self.heads * self.rope))
        kept, part = ops.split(t, q, [straight, turned])
        part, turn = kind(t, part), kind(t, turn)
        t.hold(part, turn)
        joined = ops.cat(t, (kept, part), q.dims)
        joined.storage.head_major = True
        return joined, turn

    def _expand(self, t: Tape, latent: Value, turn: Value, sizes: Heads) -> tuple[Value, Value]:
        """Keys (n, a·(d_n+d_r)) and values (n, a·d_v): keys are a new tensor that both parts are copied into, values a view."""
        both = linear(t, latent, "kv_b_proj", Dim("a·(d_n+d_v)", self.heads * (self.nope + self.v_dim)))
        straight = (latent.dims[0], Dim("a·d_n", self.heads * self.nope))
        part, v = ops.split(t, both, [straight, (latent.dims[0], sizes.out_width)])
        k = t.new("keys", (latent.dims[0], sizes.q_width), both.dtype, part.grad or turn.grad)
        k.storage.head_major = True
        whole = Size.of(k.dims, k.dtype)
        made = [Made(part, Size.of(part.dims, part.dtype)), Made(turn, Size.of(turn.dims, turn.dtype))]
        t.step("copy into", (part, turn), (k,), made=made, back_scratch=whole)
        return k, v
