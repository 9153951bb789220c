"""LFM2: short convolutions with gates in most layers, attention with normed heads in the others (modeling_lfm2.py)."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections, QkNorm
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.network import Network
from everybyte.layers.recurrent.short_conv import ShortConv
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, layer_count, tied
from everybyte.models.patterns import kinds

PLACES = Places(norm="model.embedding_norm")
KINDS = ("conv", "full_attention")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden, count = c.integer("hidden_size"), layer_count(c)
    heads, kv_heads, head_dim = c.heads(hidden)
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(names=("q_proj", "k_proj", "v_proj", "out_proj")),
        qk_norm=QkNorm(over="head", names=("q_layernorm", "k_layernorm")),
    )
    conv = ShortConv(hidden, c.integer("conv_L_cache", default=3), c.flag("conv_bias", default=False))
    mlp = GatedMLP(hidden, _width(c), names=("w1", "w3", "w2"))

    def block(kind: str) -> Block:
        mixer, name = (conv, "conv") if kind == "conv" else (attention, "self_attn")
        return Block(mixer, mlp, pre=("operator_norm", "ffn_norm"), mixer_name=name, mlp_name="feed_forward")

    attending = c.integers("full_attn_idxs", tuple(range(count)))
    default = ["full_attention" if index in attending else "conv" for index in range(count)]
    layers = [block(kind) for kind in kinds(c, "layer_types", count, KINDS, default)]
    return decoder(c, layers=layers, tied=tied(c, default=True), places=PLACES)


def _width(c: Config) -> int:
    """Of the feed-forward layers: two thirds of what the file says, times a factor, rounded up."""
    width = c.integer("block_ff_dim", "intermediate_size", default=12288)
    if not c.flag("block_auto_adjust_ff_dim", default=True):
        return width
    width = int(c.number("block_ffn_dim_multiplier", default=1.0) * int(2 * width / 3))
    multiple = c.integer("block_multiple_of", default=256)
    return -(-width // multiple) * multiple
