"""Mllama (Llama 3.2 Vision): a decoder with cross-attention in some layers to what a tower makes of an image's tiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from everybyte.basics.errors import BadInput
from everybyte.basics.units import round_up
from everybyte.layers.attention.grouped import Attention
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import GatedMLP, PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Embedding, Network, Run, Tower
from everybyte.layers.vision.stems import image
from everybyte.layers.vision.tiled import BetweenEncoders, GatedBlock, JoinedStates, MaskedAttention, TiledPatches, TilePositions
from everybyte.models.config import Config
from everybyte.models.decoder import Places, decoder
from everybyte.models.encoders.vit import patches, sides
from everybyte.models.multimodal.composed import INHERITED

TEXT = Places("model.language_model.embed_tokens", "model.language_model.layers", "model.language_model.norm")
VISION, PROJECTOR = "model.vision_model", "model.multi_modal_projector"
EXTRA_TOKENS = 8
"""Rows of the embedding beyond the vocabulary (MllamaTextModel), so that the head is never tied to it."""
TEXT_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
}
VISION_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_global_layers": 8,
    "attention_heads": 16,
    "num_channels": 3,
    "image_size": 448,
    "patch_size": 14,
    "max_num_tiles": 4,
    "vision_output_dim": 7680,
    "intermediate_layers_indices": [3, 7, 15, 23, 30],
    "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
}
"""What the configuration classes fill in (configuration_mllama.py)."""


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    inherited = {key: c.fields[key] for key in INHERITED if key in c.fields}
    part, vision = c.part("text_config"), c.part("vision_config").with_defaults(VISION_DEFAULTS)
    text = Config({**inherited, **part.fields}, part.path, c.name).with_defaults(TEXT_DEFAULTS)
    hidden, vocab = text.integer("hidden_size"), text.integer("vocab_size")
    stem = Embedding(vocab + EXTRA_TOKENS, hidden, TEXT.embed)
    network = decoder(text, layers=_layers(text), tied=False, places=TEXT, stem=stem)
    return replace(network, family=c.model_type, towers=(_tower(vision, hidden),), memory_tokens=_tiles(vision) * (patches(vision) + 1))


def _layers(c: Config) -> list[Any]:
    """The blocks of the decoder: Llama's, and those with cross-attention alone."""
    hidden = c.integer("hidden_size")
    heads, kv_heads, head_dim = c.heads(hidden)
    mlp = GatedMLP(hidden, c.integer("intermediate_size"), c.activation("silu"))
    dropout = c.number("dropout")
    own = Block(Attention(hidden, heads, kv_heads, head_dim, dropout=dropout), mlp)
    cross = GatedBlock(
        MaskedAttention(hidden, heads, kv_heads, head_dim, memory=True, dropout=dropout),
        mlp,
        Norm(),
        ("cross_attn_attn_gate", "cross_attn_mlp_gate"),
        "cross_attn",
        masked=True,
    )
    crossing = c.integers("cross_attention_layers")
    return [cross if index in crossing else own for index in range(c.integer("num_hidden_layers"))]


def _tiles(c: Config) -> int:
    return c.integer("max_num_tiles")


def _tower(c: Config, out: int) -> Tower:
    """Two encoders over all tiles of an image, the second with gates; the decoder reads the last states beside those of some blocks of the first."""
    hidden, tiles, grid = c.integer("hidden_size"), _tiles(c), patches(c)
    channels, (height, width) = c.integer("num_channels"), sides(c, "image_size")
    heads = c.integer("attention_heads")
    c.divides("attention_heads", heads, hidden)
    shapes = c.fields["supported_aspect_ratios"]
    if not isinstance(shapes, list):
        raise BadInput(f"{c.path}.supported_aspect_ratios", "must be a list of [rows, columns]")
    ratios = 1 + len(shapes)
    read = len(c.integers("intermediate_layers_indices"))
    if c.integer("vision_output_dim") != (read + 1) * hidden:
        raise BadInput(f"{c.path}.vision_output_dim", f"must be {(read + 1) * hidden}: hidden_size for the last states and each of {read} intermediate ones")
    attention = MaskedAttention(hidden, heads, heads, hidden // heads)
    mlp, norm = PlainMLP(hidden, c.integer("intermediate_size"), c.activation("gelu")), Norm("layer")
    between = BetweenEncoders(TilePositions(ratios, tiles, "post_tile_positional_embedding"))
    runs = (
        Run(f"{VISION}.transformer.layers", 0, c.integer("num_hidden_layers"), Block(attention, mlp, norm)),
        Run(VISION, -1, 1, between),
        Run(f"{VISION}.global_transformer.layers", 0, c.integer("num_global_layers"), GatedBlock(attention, mlp, norm, ("gate_attn", "gate_ffn"))),
    )
    stem = TiledPatches(channels, sides(c, "patch_size"), hidden, grid, tiles, ratios, VISION)
    tail = JoinedStates(hidden, out, tiles * (grid + 1), read, PROJECTOR)
    return Tower("vision", tiles * round_up(grid + 1, 8), runs, hidden, stem, tail, image(channels * tiles, height, width))
