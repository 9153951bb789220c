"""GLM-4.5 and 4.6: partly turned heads, DeepSeek-V3's experts behind dense first layers (modeling_glm4_moe.py)."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections, QkNorm, Rotary
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import decoder, expert_counts, rotary_dim, tied
from everybyte.models.moe.deepseek import experts_layer, routed_layers


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=c.flag("attention_bias", default=False)),
        rotary=Rotary(dim=rotary_dim(c, head_dim, 0.5)),
        qk_norm=QkNorm(over="head") if c.flag("use_qk_norm", default=False) else QkNorm(),
        dropout=c.number("attention_dropout"),
    )
    dense, moe = GatedMLP(hidden, c.integer("intermediate_size"), c.activation()), experts_layer(c)
    blocks = [Block(attention, moe if routed else dense) for routed in routed_layers(c)]
    return decoder(c, layers=blocks, tied=tied(c, default=False), experts=expert_counts(c))
