"""A transformer layer (transformer/transformer_layer.py), and several of them as one checkpoint."""

from __future__ import annotations

from msgspec.structs import replace

from everybyte.basics.record import Record
from everybyte.engines.megatron.layers.attention import SelfAttention
from everybyte.engines.megatron.layers.linear import add_dropped, norm, offloaded
from everybyte.engines.megatron.layers.mamba import MambaMixer
from everybyte.engines.megatron.layers.mla import LatentAttention
from everybyte.engines.megatron.layers.mlp import FeedForward
from everybyte.engines.megatron.layers.moe import MoELayer
from everybyte.engines.megatron.sizes import Heads, Latent, Mixture, Sizes, Split
from everybyte.engines.megatron.style import Style
from everybyte.layers.recording.tape import Made, Tape, Value


class TransformerLayer(Record, frozen=True):
    """Norm, attention or a scan, dropout and sum; norm, feed-forward or experts, dropout and sum; in hybrid models one of the two halves."""

    sizes: Sizes
    split: Split
    style: Style

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n/t, h) -> (n/t, h)."""
        if self.sizes.attention is not None:
            x = self._replayed(t, x) if self.style.replayed else self._mixed(t, x)
        return self._fed(t, x) if self.sizes.mlp is not None else x

    def _replayed(self, t: Tape, x: Value) -> Value:
        """Attention out of a CUDA graph: its input is copied into a static one, its result lies in the graphs' pool, where backward finds all it needs."""
        inner = Tape(t.setup, path=t.path)
        layer = replace(self, sizes=replace(self.sizes, mlp=None), style=replace(self.style, replayed=False))
        layer.forward(inner, inner.given("hidden states", x.dims, x.dtype, grad=True, persistent=False))
        t.parameters.extend(inner.parameters)
        out = t.from_outside("in the graphs' pool", x.dims, x.dtype)
        t.step("replay", (x,), (out,), made=[Made(x, None)])
        return out

    def _mixed(self, t: Tape, x: Value) -> Value:
        s, style = self.sizes, self.style
        # Transformer Engine joins this norm with the projection behind it, and then it is no module that could be recomputed
        apart = not style.te or isinstance(s.attention, Latent)
        runs_again = style.again("layernorm") and apart
        given = offloaded(t, x, style, "attn_norm") if runs_again else x
        with t.recomputed(runs_again, discards=True) as again:
            normed = norm(t, given, "input_layernorm", s.norm, style, module="" if runs_again else "attn_norm")
        with t.scope("self_attention", x, normed):
            if isinstance(s.attention, Heads):
                branch, bias = SelfAttention(s.hidden, s.attention, s.norm, self.split, style).forward(t, normed)
            elif isinstance(s.attention, Latent):
                branch, bias = LatentAttention(s.hidden, s.attention, s.norm, self.split, style).forward(t, normed)
            else:
                assert s.attention is not None
                branch, bias = MambaMixer(s.hidden, s.attention, self.split, style).forward(t, normed)
        t.restored(again)
        return add_dropped(t, branch, bias, x, style)

    def _fed(self, t: Tape, x: Value) -> Value:
        s, style = self.sizes, self.style
        if isinstance(s.mlp, Mixture):
            runs_again = style.again("layernorm")
            given = offloaded(t, x, style, "mlp_norm") if runs_again else x
            with t.recomputed(runs_again, discards=True) as again:
                normed = norm(t, given, "pre_mlp_layernorm", s.norm, style, module="" if runs_again else "mlp_norm")
            with t.scope("mlp", x, normed):
                branch = MoELayer(s.hidden, s.mlp, self.split, style).forward(t, normed)
            t.restored(again)
            return add_dropped(t, branch, None, x, style)
        assert s.mlp is not None
        with t.recomputed(style.again("mlp")):
            with t.recomputed(style.again("layernorm") and not style.te, discards=True) as again:
                normed = norm(t, x, "pre_mlp_layernorm", s.norm, style, module="mlp_norm")
            with t.scope("mlp", x, normed):
                branch, bias = FeedForward(s.hidden, s.mlp, self.split, style).forward(t, normed)
            t.restored(again)
        return add_dropped(t, branch, bias, x, style)


class Checkpoint(Record, frozen=True):
    """`count` layers of which the input of the first is kept, and which backward runs again (recompute_granularity full)."""

    layer: TransformerLayer
    count: int

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n/t, h) -> (n/t, h)."""
        with t.recomputed():
            for index in range(self.count):
                with t.scope(str(index) if self.count > 1 else ""):
                    x = self.layer.forward(t, x)
        return x
