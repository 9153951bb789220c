"""Image encoders that stand beside a language model: CLIP, SigLIP and Pixtral."""

from __future__ import annotations

from typing import Any

from everybyte.basics.errors import Unsupported, did_you_mean
from everybyte.layers.attention.grouped import Attention
from everybyte.layers.attention.multihead import MultiHead
from everybyte.layers.blocks.encoder import Chain, PooledNorm
from everybyte.layers.blocks.transformer import Block, FinalNorm
from everybyte.layers.common.mlp import GatedMLP, PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Run, Tower
from everybyte.layers.vision.stems import PatchEmbedding, cut, image
from everybyte.models.config import Config
from everybyte.models.encoders.vit import patches, sides

PRE_NORMS = ("layer_norm1", "layer_norm2")


def encoder_block(c: Config) -> Block:
    """A block of CLIP and SigLIP, text or image: LayerNorm before each branch, biases everywhere (modeling_clip.py, modeling_siglip.py)."""
    hidden = c.integer("hidden_size")
    heads, _, head_dim = c.heads(hidden)
    act = c.activation("gelu_pytorch_tanh" if c.model_type.startswith("siglip") else "quick_gelu")
    attention = MultiHead(hidden, heads, head_dim, dropout=c.number("attention_dropout"))
    return Block(attention, PlainMLP(hidden, c.integer("intermediate_size"), act), Norm("layer"), PRE_NORMS)


def image_tower(c: Config, prefix: str, behind: Any) -> Tower:
    """The tower that a `vision_config` describes; `behind` carries its result into the language model. Raises Unsupported for others."""
    makers = {"clip_vision_model": _clip, "siglip_vision_model": _siglip, "pixtral": _pixtral}
    maker = makers.get(c.model_type)
    if maker is None:
        asked = c.model_type or "no model_type"
        raise Unsupported(f"{c.path}.model_type", f"{asked} is not a supported image encoder{did_you_mean(asked, makers)}; supported: {', '.join(makers)}")
    return maker(c, prefix, behind)


def _clip(c: Config, prefix: str, behind: Any) -> Tower:
    """One class token, positions from a table, a norm before the blocks; the norm behind them sees the class token only."""
    hidden, grid, norm = c.integer("hidden_size"), patches(c), Norm("layer")
    stem = PatchEmbedding(
        c.integer("num_channels", default=3),
        sides(c, "patch_size"),
        hidden,
        grid,
        f"{prefix}.embeddings.patch_embedding",
        bias=False,
        class_token=f"{prefix}.embeddings.class_embedding",
        positions=f"{prefix}.embeddings.position_embedding",
        table=True,
        norm=norm,
        norm_leaf=f"{prefix}.pre_layrnorm",
    )
    return _fixed(c, prefix, grid + 1, hidden, stem, Chain((PooledNorm(f"{prefix}.post_layernorm"), behind)))


def _siglip(c: Config, prefix: str, behind: Any) -> Tower:
    """No class token, positions from a table, a norm behind the blocks."""
    if c.flag("vision_use_head", default=False):
        raise Unsupported(f"{c.path}.vision_use_head", "true: the pooling head of SigLIP is not supported beside a language model")
    hidden, grid = c.integer("hidden_size"), patches(c)
    stem = PatchEmbedding(
        c.integer("num_channels", default=3),
        sides(c, "patch_size"),
        hidden,
        grid,
        f"{prefix}.embeddings.patch_embedding",
        positions=f"{prefix}.embeddings.position_embedding",
        table=True,
    )
    return _fixed(c, prefix, grid, hidden, stem, Chain((FinalNorm(Norm("layer"), f"{prefix}.post_layernorm"), behind)))


def _fixed(c: Config, prefix: str, tokens: int, hidden: int, stem: Any, tail: Any) -> Tower:
    runs = (Run(f"{prefix}.encoder.layers", 0, c.integer("num_hidden_layers"), encoder_block(c)),)
    channels = c.integer("num_channels", default=3)
    return Tower("vision", tokens, runs, hidden, stem, tail, image(channels, *sides(c, "image_size")))


def _pixtral(c: Config, prefix: str, behind: Any) -> Tower:
    """Images of any size, one after the other in one sequence: rotary positions, RMSNorm, gated feed-forward, no biases (modeling_pixtral.py)."""
    hidden, norm = c.integer("hidden_size"), Norm()
    heads, _, head_dim = c.heads(hidden)
    channels, patch = c.integer("num_channels", default=3), sides(c, "patch_size")
    stem = PatchEmbedding(
        channels,
        patch,
        hidden,
        0,
        f"{prefix}.patch_conv",
        bias=False,
        norm=norm,
        norm_leaf=f"{prefix}.ln_pre",
        masked=True,
    )
    attention = Attention(hidden, heads, heads, head_dim, dropout=c.number("attention_dropout"), cached=False)
    mlp = GatedMLP(hidden, c.integer("intermediate_size"), c.activation("gelu"))
    block = Block(attention, mlp, norm, ("attention_norm", "ffn_norm"), mixer_name="attention", mlp_name="feed_forward")
    runs = (Run(f"{prefix}.transformer.layers", 0, c.integer("num_hidden_layers"), block),)
    return Tower("vision", 0, runs, hidden, stem, behind, cut(channels, patch))
