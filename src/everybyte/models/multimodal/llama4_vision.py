"""Llama 4 with its image tower (transformers modeling_llama4.py)."""

from __future__ import annotations

from everybyte.basics.errors import BadInput
from everybyte.layers.attention.grouped import Attention, Projections, Rotary
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Network, Run, Tower
from everybyte.layers.vision.llama4 import ShuffledProjector, UnfoldedPatches
from everybyte.layers.vision.stems import image
from everybyte.models.config import Config
from everybyte.models.encoders.vit import patches, sides
from everybyte.models.multimodal.composed import with_towers

PLACE = "vision_model"


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    out = c.part("text_config").integer("hidden_size", default=5120)
    return with_towers(c, "Llama4ForCausalLM", (_tower(c.part("vision_config"), out),))


def _tower(c: Config, out: int) -> Tower:
    hidden, grid = c.integer("hidden_size", default=768), patches(c)
    heads, _, head_dim = c.heads(hidden)
    channels, (tall, wide) = c.integer("num_channels", default=3), sides(c, "patch_size")
    ratio = c.number("pixel_shuffle_ratio", default=0.5)
    area = round(1 / ratio**2) if 0 < ratio <= 1 else 0
    inner = c.integer("intermediate_size", default=5632)
    if not area or grid % area or inner != hidden * area:
        raise BadInput(f"{c.path}.pixel_shuffle_ratio", f"must turn hidden_size ({hidden}) into intermediate_size ({inner}) and divide the {grid} patches")
    attention = Attention(
        hidden,
        heads,
        heads,
        head_dim,
        projections=Projections(qkv_bias=True, out_bias=True),
        rotary=Rotary(complex=True),
        dropout=c.number("attention_dropout"),
        cached=False,
    )
    block = Block(attention, PlainMLP(hidden, inner, "gelu"), Norm("layer"))
    tail = ShuffledProjector(
        hidden,
        inner,
        c.integer("projector_input_dim", default=4096),
        c.integer("projector_output_dim", default=4096),
        out,
        grid,
        area,
        PLACE,
        "multi_modal_projector",
    )
    runs = (Run(f"{PLACE}.model.layers", 0, c.integer("num_hidden_layers", default=34), block),)
    stem = UnfoldedPatches(channels * tall * wide, hidden, grid, PLACE)
    return Tower("vision", grid + 1, runs, hidden, stem, tail, image(channels, *sides(c, "image_size")))
