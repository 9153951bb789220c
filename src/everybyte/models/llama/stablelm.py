"""StableLM: Llama with LayerNorm, rotary positions on a quarter of each head, optionally side by side branches and a norm for each head."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections, QkNorm, Rotary
from everybyte.layers.blocks.transformer import Block, ParallelBlock
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import decoder, rotary_dim, tied


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=c.flag("use_qkv_bias", default=False)),
        rotary=Rotary(dim=rotary_dim(c, head_dim, default=0.25), inline=True),
        qk_norm=QkNorm(over="each", kind="layer", names=("q_layernorm", "k_layernorm")) if c.flag("qk_layernorm", default=False) else QkNorm(),
        dropout=c.number("attention_dropout"),
    )
    mlp = GatedMLP(hidden, c.integer("intermediate_size"), c.activation(), dropout=c.number("hidden_dropout"))
    norm = Norm("layer")
    if c.flag("use_parallel_residual", default=False):
        block: object = ParallelBlock(attention, mlp, norm, residual_first=True)
    else:
        block = Block(attention, mlp, norm, holds=("in 0", "out 0", "out 1"))
    return decoder(c, block, tied=tied(c, default=False), norm=norm)
