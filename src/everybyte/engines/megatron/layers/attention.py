"""Self-attention with grouped heads (transformer/attention.py SelfAttention), on one rank of a tensor-parallel group."""

from __future__ import annotations

from everybyte.basics.record import Record
from everybyte.engines.megatron.layers.core import attend
from everybyte.engines.megatron.layers.linear import column, norm, row
from everybyte.engines.megatron.sizes import Heads, Split
from everybyte.engines.megatron.style import Style
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import QUERIES, TOKENS, Dim, Size
from everybyte.layers.recording.tape import Made, Tape, Value


class SelfAttention(Record, frozen=True):
    """One joined projection of queries, keys and values; positions; attention; the projection back."""

    hidden: int
    sizes: Heads
    norm: str
    split: Split
    style: Style

    @property
    def heads(self) -> int:
        """Query heads of this rank."""
        return self.sizes.heads // self.split.tp

    @property
    def groups(self) -> int:
        """Heads of keys and values of this rank; a rank has at least one, repeated where there are fewer than ranks."""
        return max(self.sizes.kv_heads // self.split.tp, 1)

    def forward(self, t: Tape, x: Value) -> tuple[Value, Value | None]:
        """x (n/t, h) -> (n/t, h) and the bias of the projection back."""
        s, d = self.sizes, self.sizes.head_dim
        q_width, k_width = Dim("A", self.heads * d), Dim("K", self.groups * d)
        mixed = column(t, x, "linear_qkv", Dim("(A+2K)", q_width.size + 2 * k_width.size), self.split, self.style, bias=s.bias, module="qkv_linear")
        q, k, v = ops.split(t, mixed, [(TOKENS, width) for width in (q_width, k_width, k_width)])
        fresh = s.rope or s.qk_norm or self.style.qk_norm
        if s.qk_norm or self.style.qk_norm:
            q, k = self._normed(t, q, "q_layernorm", self.heads), self._normed(t, k, "k_layernorm", self.groups)
        if s.rope:
            q, k = self._turned(t, q), self._turned(t, k)
        if fresh and self.style.te:
            # q, k and v are no longer parts of one tensor: Transformer Engine makes each contiguous (get_qkv_layout)
            v = ops.contiguous(t, v)
        out = attend(t, q, k, v, self.heads, self.groups, q_width, self.style, padded=s.padded)
        return row(t, out, "linear_proj", Dim("h", self.hidden), self.split, self.style, bias=s.out_bias, module="attn_proj")

    def _normed(self, t: Tape, x: Value, leaf: str, heads: int) -> Value:
        return norm(t, x, leaf, self.norm, self.style, dims=(TOKENS, Dim("a" if heads == self.heads else "k", heads), Dim("d", self.sizes.head_dim)))

    def _turned(self, t: Tape, x: Value) -> Value:
        """Rotary positions: one kernel, or products with cos and sin of every position, made anew for q and k of each layer and kept
        (models/common/embeddings/rope_utils.py _apply_rotary_pos_emb_bshd)."""
        out = t.new("rope", x.dims, x.dtype, True)
        made = [Made(x, Size.of(x.dims, x.dtype))]
        if self.style.rope_fused:
            t.step("rope", (x,), (out,), made=made)
            return out
        share, whole = self.style.rotary
        table = (QUERIES, Dim("d_r", self.sizes.head_dim * share // whole))
        angles = [t.new(name, table, x.dtype, False) for name in ("cos", "sin")]
        one = Size.of(x.dims, x.dtype)
        t.step("rope", (x,), (out, *angles), saved=angles, made=made, scratch=one * 2, back_scratch=one * 2)
        return out
