"""LLaVA, Mistral 3 and Gemma 3: an image encoder, a projector, a decoder."""

from __future__ import annotations

from everybyte.basics.errors import BadInput
from everybyte.layers.common.norm import Norm
from everybyte.layers.network import Network
from everybyte.layers.vision.gemma import PooledProjector
from everybyte.layers.vision.stems import Projector
from everybyte.models.config import Config
from everybyte.models.encoders.towers import image_tower
from everybyte.models.encoders.vit import patches
from everybyte.models.multimodal.composed import CLASS_DEFAULTS, with_towers
from everybyte.models.registry import MODEL_TYPES

TOWER, PROJECTOR = "model.vision_tower", "model.multi_modal_projector"


def build(c: Config) -> Network:
    """The network of a config.json of this family."""
    text, vision = c.part("text_config"), c.part("vision_config")
    hidden = text.integer("hidden_size", default=CLASS_DEFAULTS.get(text.model_type, {}).get("hidden_size"))
    source = vision.integer("hidden_size")
    if c.architecture == "Gemma3ForConditionalGeneration":
        tokens = c.integer("mm_tokens_per_image", default=256)
        if patches(vision) % tokens:
            raise BadInput(f"{c.path}.mm_tokens_per_image", f"must divide the patches of an image ({patches(vision)}), and {tokens} does not")
        return with_towers(c, "Gemma3ForCausalLM", (image_tower(vision, TOWER, PooledProjector(source, hidden, patches(vision) // tokens, PROJECTOR)),))
    layers = c.fields.get("vision_feature_layer", -1)
    if not isinstance(layers, int):
        raise BadInput(f"{c.path}.vision_feature_layer", "must be one layer: several layers side by side are not supported")
    mistral = c.architecture == "Mistral3ForConditionalGeneration"
    projector = Projector(
        source,
        hidden,
        c.activation("gelu", "projector_hidden_act"),
        c.flag("multimodal_projector_bias", default=not mistral),
        PROJECTOR,
        c.integer("spatial_merge_size", default=2) if mistral else 1,
        Norm() if mistral else None,
    )
    return with_towers(c, text.architecture or MODEL_TYPES.get(text.model_type, "LlamaForCausalLM"), (image_tower(vision, TOWER, projector),))
