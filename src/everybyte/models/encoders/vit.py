"""ViT: an image encoder, bare with its pooler or with a classifier."""

from __future__ import annotations

from everybyte.basics.errors import BadInput
from everybyte.layers.attention.multihead import MultiHead
from everybyte.layers.blocks.encoder import Pooler
from everybyte.layers.blocks.transformer import Block
from everybyte.layers.common.mlp import PlainMLP
from everybyte.layers.common.norm import Norm
from everybyte.layers.heads.loss import Head
from everybyte.layers.network import Network, Run
from everybyte.layers.recording.size import SEQUENCES, Dim
from everybyte.layers.vision.stems import PatchEmbedding, image
from everybyte.models.config import Config

NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")


def sides(c: Config, key: str) -> tuple[int, int]:
    """A size that is one number or [height, width]."""
    value = c.fields.get(key)
    if isinstance(value, list) and len(value) == 2:
        height, width = c.integers(key)
        if min(height, width) < 1:
            raise BadInput(f"{c.path}.{key}", f"must be positive, not {value!r}")
        return height, width
    side = c.integer(key)
    return side, side


def patches(c: Config) -> int:
    """Patches of an image of the configured size."""
    (height, width), (tall, wide) = sides(c, "image_size"), sides(c, "patch_size")
    count = (height // tall) * (width // wide)
    if not count:
        raise BadInput(f"{c.path}.patch_size", f"is larger than the image: {tall}x{wide} in {height}x{width}")
    return count


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    hidden = c.integer("hidden_size")
    heads, _, head_dim = c.heads(hidden)
    dropout = c.number("hidden_dropout_prob")
    bias = c.flag("qkv_bias", default=True)
    attention = MultiHead(hidden, heads, head_dim, NAMES, (bias, bias, bias, True), dropout=c.number("attention_probs_dropout_prob"))
    mlp = PlainMLP(hidden, c.integer("intermediate_size"), c.activation("gelu"))
    block = Block(attention, mlp, Norm("layer"), ("layernorm_before", "layernorm_after"), mixer_name="attention", dropout=dropout)
    channels, grid = c.integer("num_channels", default=3), patches(c)
    classifier = c.architecture == "ViTForImageClassification"
    prefix = "vit." if classifier else ""
    stem = PatchEmbedding(
        channels,
        sides(c, "patch_size"),
        hidden,
        grid,
        f"{prefix}embeddings.patch_embeddings.projection",
        class_token=f"{prefix}embeddings.cls_token",
        positions=f"{prefix}embeddings.position_embeddings",
        dropout=dropout,
    )
    leaf = "" if classifier else "pooler.dense"
    tail = Pooler(hidden, c.integer("pooler_output_size", default=hidden), leaf, norm=f"{prefix}layernorm", activation=not classifier)
    labels = c.integer("num_labels", default=len(c.fields.get("id2label") or {}) or 2)
    return Network(
        c.name,
        c.model_type,
        hidden,
        0,
        (Run(f"{prefix}layers", 0, c.integer("num_hidden_layers"), block),),
        stem,
        tail,
        Head(hidden, labels, tied=False, leaf="classifier", bias=True, upcast=False) if classifier else None,
        dtype=c.dtype(),
        stem_dims=image(channels, *sides(c, "image_size")),
        head_dims=(SEQUENCES, Dim("h", hidden)),
        tokens=grid + 1,
    )
