"""CLIP: an image encoder and a text encoder, each projected into one space; and its text encoder alone (modeling_clip.py)."""

from __future__ import annotations

from everybyte.layers.blocks.encoder import Pooler
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Embedding, Network, Run, Tower
from everybyte.layers.vision.stems import PatchEmbedding, image
from everybyte.models.config import Config
from everybyte.models.encoders.towers import encoder_block
from everybyte.models.encoders.vit import patches, sides

TEXT = "text_model"
VISION = "vision_model"


def build(c: Config) -> Network:
    """The network of a config.json of this family: the text encoder, with the image encoder as a tower."""
    whole = c.architecture == "CLIPModel"
    text = c.part("text_config", "text_config_dict") if whole else c
    hidden, vocab = text.integer("hidden_size", default=512), text.integer("vocab_size", default=49408)
    projected = (c if whole else text).integer("projection_dim", default=512)
    positions = text.integer("max_position_embeddings", default=77)
    leaf = "" if c.architecture == "CLIPTextModel" else "text_projection"
    tail = Pooler(
        hidden,
        projected,
        leaf,
        f"{TEXT}.final_layer_norm",
        activation=False,
        bias=False,
        scalar="logit_scale" if whole else "",
    )
    return Network(
        c.name,
        c.model_type,
        hidden,
        vocab,
        (Run(f"{TEXT}.encoder.layers", 0, text.integer("num_hidden_layers", default=12), encoder_block(text)),),
        Embedding(vocab, hidden, f"{TEXT}.embeddings.token_embedding", positions, f"{TEXT}.embeddings.position_embedding"),
        tail,
        None,
        towers=(_vision(c.part("vision_config", "vision_config_dict"), projected),) if whole else (),
        dtype=c.dtype(),
        max_positions=positions,
    )


def _vision(c: Config, projected: int) -> Tower:
    hidden, grid, channels = c.integer("hidden_size", default=768), patches(c), c.integer("num_channels", default=3)
    stem = PatchEmbedding(
        channels,
        sides(c, "patch_size"),
        hidden,
        grid,
        f"{VISION}.embeddings.patch_embedding",
        bias=False,
        class_token=f"{VISION}.embeddings.class_embedding",
        positions=f"{VISION}.embeddings.position_embedding",
        table=True,
        norm=Norm("layer"),
        norm_leaf=f"{VISION}.pre_layrnorm",
    )
    tail = Pooler(hidden, projected, "visual_projection", f"{VISION}.post_layernorm", norm_after=True, activation=False, bias=False)
    runs = (Run(f"{VISION}.encoder.layers", 0, c.integer("num_hidden_layers", default=12), encoder_block(c)),)
    return Tower("vision", grid + 1, runs, hidden, stem, tail, image(channels, *sides(c, "image_size")))
