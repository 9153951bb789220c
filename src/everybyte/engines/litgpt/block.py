"""The blocks of LitGPT, written as litgpt/model.py and litgpt/adapter.py write them."""

from __future__ import annotations

from everybyte.basics.dtypes import FP32
from everybyte.basics.record import Record
from everybyte.catalog.releases import Release
from everybyte.engines.litgpt.linear import joined, linear
from everybyte.engines.litgpt.sizes import Sizes
from everybyte.layers.attention.kernels import SCORES, Heads, attend
from everybyte.layers.common.mlp import activate
from everybyte.layers.common.norm import layer_norm
from everybyte.layers.recording import ops
from everybyte.layers.recording.size import QUERIES, Dim, Size
from everybyte.layers.recording.tape import Made, Tape, Value


class LitNorm(Record, frozen=True):
    """torch.nn.LayerNorm, or LitGPT's own RMSNorm in fp32."""

    kind: str
    unit_offset: bool
    half_product: bool
    """x̂ is cast back before the product with the weight; else the product is made in fp32 and cast."""
    compiled: bool = False
    """torch.compile fuses it, and works out anew in backward what no matrix product reads (functorch/partitioners.py)."""

    def forward(self, t: Tape, x: Value, leaf: str) -> Value:
        """x (..., h) -> (..., h)."""
        if self.kind == "layer":
            return layer_norm(t, x, leaf)
        with t.scope(leaf):
            weight = t.parameter("weight", (x.dims[-1],))
            if self.compiled:
                return self._fused(t, x, weight)
            if self.unit_offset:
                weight = ops.unary(t, "add", weight, keeps="nothing")
            wide = ops.cast(t, x, FP32)
            squares = ops.mean(t, ops.mul(t, wide, wide), x.dims[:-1])
            rate = ops.unary(t, "rsqrt", ops.unary(t, "add", squares, keeps="nothing"), keeps="output")
            normal = ops.mul(t, wide, rate)
            if self.half_product:
                return ops.mul(t, ops.cast(t, normal, x.dtype), weight)
            return ops.cast(t, ops.mul(t, normal, ops.cast(t, weight, FP32)), x.dtype)

    @staticmethod
    def _fused(t: Tape, x: Value, weight: Value) -> Value:
        """One kernel: keeps its input and one fp32 number a row."""
        out = t.new("norm", x.dims, x.dtype, x.grad or weight.grad)
        rate = t.new("rsqrt", x.dims[:-1], FP32, False)
        t.step("norm", (x, weight), (out, rate), saved=(x, rate))
        return out


class LitAttention(Record, frozen=True):
    """CausalSelfAttention; `prompt`: learned tokens that every query also attends to (LLaMA-Adapter), 0 for none."""

    sizes: Sizes
    norm: LitNorm
    release: Release
    prompt: int = 0

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        s = self.sizes
        heads = Heads(s.heads, s.groups, s.head_size, s.head_size)
        widths = (heads.q_width, heads.k_width, heads.v_width)
        qkv = joined(t, x, "qkv", widths, bias=s.qkv_bias, grouped=s.groups != s.heads, clones=self.release.has("clones_index"))
        q, k, v = ops.split(t, qkv, [(x.dims[0], w) for w in widths])
        if s.qk_norm:
            q, k = self._norms(t, q, "norm_q", s.heads), self._norms(t, k, "norm_k", s.groups)
        if self.release.has("interleaves"):
            if 1 < s.groups < s.heads:
                q = ops.contiguous(t, q)
            k, v = self._spread(t, k), self._spread(t, v)
        q, k = self._positions(t, q), self._positions(t, k)
        if not self.release.has("interleaves"):
            k, v = (part if s.groups == s.heads else ops.repeat(t, part, q.dims) for part in (k, v))
        bias = None
        if s.window and not s.softcap:
            bias = ops.made(t, "sliding window", (Dim("s·t", 1, (*QUERIES.axes, *SCORES.axes[2:])),), q.dtype)
        out = attend(t, q, k, v, Heads(s.heads, s.heads, s.head_size, s.head_size), softcap=s.softcap, bias=bias)
        if self.prompt:
            out = self._prompted(t, q, out)
        return linear(t, out, "proj", Dim("h", s.hidden), bias=s.out_bias, role="projection")

    def _spread(self, t: Tape, x: Value) -> Value:
        """`x.expand(...).reshape(...)` over the query heads of each group: a copy, unless there is one group."""
        s = self.sizes
        dims = (x.dims[0], Dim("A", s.heads * s.head_size))
        if s.groups == s.heads:
            return x
        if s.groups > 1:
            return ops.repeat(t, x, dims)
        out = Value(x.storage, dims, x.dtype, x.grad)
        t.step("expand", (x,), (out,), made=[Made(x, Size.of(x.dims, x.dtype))])
        return out

    def _norms(self, t: Tape, x: Value, leaf: str, heads: int) -> Value:
        if self.sizes.qk_norm == "all":
            return self.norm.forward(t, x, leaf)
        by_head = ops.view(x, (*x.dims[:-1], Dim("a" if heads == self.sizes.heads else "k", heads), Dim("d", self.sizes.head_size)))
        return ops.view(self.norm.forward(t, by_head, leaf), x.dims)

    def _positions(self, t: Tape, x: Value) -> Value:
        """apply_rope on the first numbers of each head: cos and sin are fp32, so both products and their sum are; the rest is joined to the result."""
        if self.norm.compiled:
            turned = t.new("positions", x.dims, x.dtype, x.grad)
            turned.storage.head_major = True
            t.step("positions", (x,), (turned,))
            return turned
        share = Dim(x.dims[-1].letter, x.dims[-1].size * self.sizes.rotary // self.sizes.head_size)
        rest = ops.narrow(t, x, (*x.dims[:-1], Dim("d_p", x.dims[-1].size - share.size)))
        turned = x if not rest.dims[-1].size else ops.narrow(t, x, (*x.dims[:-1], share))
        half = t.new("cat", turned.dims, x.dtype, x.grad)
        negated = Size.of((*x.dims[:-1], Dim("d_r/2", max(share.size // 2, 1))), x.dtype)
        t.step("cat", (turned,), (half,), scratch=negated, back_scratch=Size.of(turned.dims, x.dtype))
        left, right = (self._times_table(t, part) for part in (turned, half))
        out = ops.cat(t, (ops.cast(t, ops.add(t, left, right), x.dtype), rest), x.dims)
        out.storage.head_major = True
        return out

    @staticmethod
    def _times_table(t: Tape, x: Value) -> Value:
        out = t.new("mul", x.dims, FP32, x.grad)
        t.step("mul", (x,), (out,))
        return out

    def _prompted(self, t: Tape, q: Value, out: Value) -> Value:
        """`y + gating_factor · attention(q, prompt)` (litgpt/adapter.py). The prompt's keys and values are worked out once, in the validation before
        training, and cached: the prompt itself never gets a gradient. A mask, widened to a multiple of 8 columns, leads to the memory-efficient
        kernel, which keeps q, its result, one fp32 number a row, and the mask."""
        s = self.sizes
        t.parameter("adapter_wte.weight", (Dim("p", self.prompt), Dim("h", s.hidden)), adapter=True)
        mask = ops.made(t, "prompt mask", (QUERIES, Dim("p", -(-self.prompt // 8) * 8)), q.dtype)
        result = t.new("attention", q.dims, q.dtype, q.grad)
        lse = t.new("logsumexp", (q.dims[0], Dim("a", s.heads)), FP32, False)
        t.step("attention", (q, mask), (result, lse), saved=(q, mask, result, lse), back_scratch=lse.storage.size)
        by_head = ops.view(result, (q.dims[0], Dim("a", s.heads), Dim("d", s.head_size)))
        gate = t.parameter("gating_factor", (Dim("a", s.heads), Dim("1", 1)), adapter=True)
        return ops.add(t, out, ops.view(ops.mul(t, gate, by_head), out.dims))


class LitMLP(Record, frozen=True):
    """LLaMAMLP and GemmaMLP (`gated`): both projections, then the function of one times the other; GptNeoxMLP: one, then the function."""

    sizes: Sizes
    compiled: bool = False

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        s = self.sizes
        width = Dim("f", s.ffn)
        if s.gated:
            first, second = (linear(t, x, leaf, width, bias=s.mlp_bias, role="mlp") for leaf in ("fc_1", "fc_2"))
            inner = self._fused(t, first, second) if self.compiled else ops.mul(t, activate(t, first, s.activation), second)
        else:
            inner = activate(t, linear(t, x, "fc", width, bias=s.mlp_bias, role="mlp"), s.activation)
        return linear(t, inner, "proj", Dim("h", s.hidden), bias=s.mlp_bias, role="mlp")

    @staticmethod
    def _fused(t: Tape, first: Value, second: Value) -> Value:
        """The function of one times the other in one kernel: keeps both; the last projection keeps the product."""
        out = t.new("product", first.dims, first.dtype, first.grad)
        t.step("product", (first, second), (out,), saved=(first, second))
        return out


class LitBlock(Record, frozen=True):
    """Block: branches one after the other, or side by side with one norm or two."""

    sizes: Sizes
    norm: LitNorm
    release: Release
    prompt: int = 0

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n, h) -> (n, h)."""
        s = self.sizes
        normed = self.norm.forward(t, x, "norm_1")
        with t.scope("attn", normed, x):
            attention = LitAttention(s, self.norm, self.release, self.prompt).forward(t, normed)
        if s.post_norms:
            attention = self.norm.forward(t, attention, "post_attention_norm")
        stream = ops.add(t, attention, x)
        if not s.shared_norm:
            normed = self.norm.forward(t, x if s.parallel else stream, "norm_2")
        with t.scope("mlp", normed, stream):
            branch = LitMLP(s, self.norm.compiled).forward(t, normed)
        if s.post_norms:
            branch = self.norm.forward(t, branch, "post_mlp_norm")
        return ops.add(t, branch, stream)
