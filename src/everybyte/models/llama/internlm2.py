"""InternLM 2: Llama with one joined projection and names of its own (modeling_internlm2.py of internlm/internlm2-7b)."""

from __future__ import annotations

from everybyte.layers.attention.grouped import Attention, Projections
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP
from everybyte.layers.network import Network
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder, tied

PLACES = Places("model.tok_embeddings", "model.layers", "model.norm", "output")


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    bias = c.flag("bias", default=False)
    attention = Attention(
        hidden,
        heads,
        kv_heads,
        head_dim,
        projections=Projections(qkv_bias=bias, out_bias=bias, fused="wqkv", names=("", "", "", "wo")),
    )
    mlp = GatedMLP(hidden, c.integer("intermediate_size"), c.activation(), names=("w1", "w3", "w2"))
    block = Block(attention, mlp, pre=("attention_norm", "ffn_norm"), mixer_name="attention", mlp_name="feed_forward")
    return decoder(c, block, tied=tied(c, default=False), places=PLACES)
