"""A transformer layer (transformer/transformer_layer.py), and several of them as one checkpoint."""

from __future__ import annotations

from everybyte.basics.record import Record
from everybyte.engines.megatron.attention import SelfAttention
from everybyte.engines.megatron.linear import add_dropped, norm, parked
from everybyte.engines.megatron.mla import LatentAttention
from everybyte.engines.megatron.mlp import FeedForward
from everybyte.engines.megatron.moe import MoELayer
from everybyte.engines.megatron.sizes import Heads, Mixture, Sizes, Split
from everybyte.engines.megatron.style import Style
from everybyte.layers.tape import Tape, Value


class TransformerLayer(Record, frozen=True):
    """Norm, attention, dropout and sum; norm, feed-forward or experts, dropout and sum."""

    sizes: Sizes
    split: Split
    style: Style

    def forward(self, t: Tape, x: Value) -> Value:
        """x (n/t, h) -> (n/t, h)."""
        return self._fed(t, self._attended(t, x))

    def _attended(self, t: Tape, x: Value) -> Value:
        s, style = self.sizes, self.style
        # Transformer Engine joins this norm with the projection behind it, and then it is no module that could be recomputed
        apart = not style.te or not isinstance(s.attention, Heads)
        given = parked(t, x, style, "attn_norm")
        with t.recomputed(style.again("layernorm") and apart, discards=True) as again:
            normed = norm(t, given, "input_layernorm", s.norm, style, module="attn_norm")
        with t.scope("self_attention", x, normed):
            if isinstance(s.attention, Heads):
                branch, bias = SelfAttention(s.hidden, s.attention, s.norm, self.split, style).forward(t, normed)
            else:
                branch, bias = LatentAttention(s.hidden, s.attention, s.norm, self.split, style).forward(t, normed)
        t.restored(again)
        return add_dropped(t, branch, bias, x, style)

    def _fed(self, t: Tape, x: Value) -> Value:
        s, style = self.sizes, self.style
        if isinstance(s.mlp, Mixture):
            given = parked(t, x, style, "mlp_norm")
            with t.recomputed(style.again("layernorm"), discards=True) as again:
                normed = norm(t, given, "pre_mlp_layernorm", s.norm, style, module="mlp_norm")
            with t.scope("mlp", x, normed):
                branch = MoELayer(s.hidden, s.mlp, self.split, style).forward(t, normed)
            t.restored(again)
            return add_dropped(t, branch, None, x, style)
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
