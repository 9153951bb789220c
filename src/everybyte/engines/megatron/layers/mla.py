"""Multi-latent attention (transformer/multi_latent_attention.py), on one rank of a tensor-parallel group: every rank makes the whole latents of
its part of the tokens, and its own heads out of them."""

from __future__ import annotations

from everybyte.basics.record import Record
from everybyte.engines.megatron.layers.core import attend
from everybyte.engines.megatron.layers.linear import column, duplicated, norm, offloaded, row
from everybyte.engines.megatron.sizes import Latent, Split
from everybyte.engines.megatron.style import Style
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import TOKENS, Dim, Size
from everybyte.layers.recording.tape import Made, Tape, Value

QKV = "qkv_linear"
"""The module whose kept tensors may wait in host memory: both projections down, the norms behind them, the projections up."""


class LatentAttention(Record, frozen=True):
    """MLASelfAttention with keys and values written out for every head."""

    hidden: int
    sizes: Latent
    norm: str
    split: Split
    style: Style

    @property
    def heads(self) -> int:
        """Heads of this rank."""
        return self.sizes.heads // self.split.tp

    def forward(self, t: Tape, x: Value) -> tuple[Value, Value | None]:
        """x (n/t, h) -> (n/t, h) and the bias of the projection back."""
        s = self.sizes
        latent = x
        if s.q_rank:
            latent = duplicated(t, x, "linear_q_down_proj", Dim("r_q", s.q_rank), self.style, module=QKV)
            latent = norm(t, latent, "q_layernorm", self.norm, self.style, module=QKV)
        joined = duplicated(t, x, "linear_kv_down_proj", Dim("(r_kv+d_r)", s.kv_rank + s.rope), self.style, module=QKV)
        compressed, turn = self._parts(t, joined)
        compressed = norm(t, compressed, "kv_layernorm", self.norm, self.style, module=QKV)
        out_width = Dim("a·d_v", self.heads * s.v_dim)
        runs_again = self.style.again("mla_up_proj")
        if runs_again:
            latent, compressed = (offloaded(t, value, self.style, QKV) for value in (latent, compressed))
        with t.recomputed(runs_again, discards=True) as up:
            q, k, v = self._up(t, latent, compressed, turn, module="" if runs_again else QKV)
        out = attend(t, q, k, v, self.heads, self.heads, out_width, self.style)
        found = row(t, out, "linear_proj", Dim("h", self.hidden), self.split, self.style, bias=s.bias, module="attn_proj")
        t.restored(up)
        return found

    def _parts(self, t: Tape, joined: Value) -> tuple[Value, Value]:
        """The latent of keys and values, and the part of the keys that turns, gathered for all tokens."""
        s = self.sizes
        compressed, turn = (t.new("split", (joined.dims[0], Dim(name, size)), joined.dtype, True) for name, size in (("r_kv", s.kv_rank), ("d_r", s.rope)))
        t.step("split", (joined,), (compressed, turn), made=[Made(joined, Size.of(joined.dims, joined.dtype))])
        if not self.split.sp:
            return compressed, turn
        whole = t.new("all-gather", (TOKENS, turn.dims[-1]), turn.dtype, True)
        t.step("all-gather", (turn,), (whole,), made=[Made(turn, Size.of(turn.dims, turn.dtype))])
        return compressed, whole

    def _up(self, t: Tape, latent: Value, compressed: Value, turn: Value, *, module: str) -> tuple[Value, Value, Value]:
        """Queries and keys are put together in new tensors; values stay a part of what the projection made."""
        s, heads = self.sizes, self.heads
        width = Dim("a·(d_n+d_r)", heads * (s.nope + s.rope))
        leaf = "linear_q_up_proj" if s.q_rank else "linear_q_proj"
        q = self._assembled(t, (column(t, latent, leaf, width, self.split, self.style, bias=False, module=module),), width)
        up_width = Dim("a·(d_n+d_v)", heads * (s.nope + s.v_dim))
        both = column(t, compressed, "linear_kv_up_proj", up_width, self.split, self.style, bias=False, module=module)
        straight, v = ops.split(t, both, [(TOKENS, Dim("a·d_n", heads * s.nope)), (TOKENS, Dim("a·d_v", heads * s.v_dim))])
        return q, self._assembled(t, (straight, turn), width), v

    def _assembled(self, t: Tape, parts: tuple[Value, ...], width: Dim) -> Value:
        """The part that turns beside the part that does not."""
        out = t.new("rope", (TOKENS, width), parts[0].dtype, True)
        turned = Size.of((TOKENS, Dim("a·d_r", self.heads * self.sizes.rope)), out.dtype)
        t.step("rope", parts, (out,), saved=parts[1:], made=[Made(p, Size.of(p.dims, p.dtype)) for p in parts], scratch=turned, back_scratch=turned)
        return out
