"""Which file builds which architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from everybyte.basics.errors import Unsupported, did_you_mean
from everybyte.layers.network import Network
from everybyte.models.config import Config

FAMILIES: dict[str, tuple[str, ...]] = {
    "llama": ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"),
    "bert": ("BertModel", "BertForMaskedLM", "RobertaModel", "RobertaForMaskedLM", "DistilBertModel", "DistilBertForMaskedLM"),
    "t5": ("T5ForConditionalGeneration", "T5Model", "T5EncoderModel", "MT5ForConditionalGeneration", "MT5Model", "MT5EncoderModel"),
    "whisper": ("WhisperForConditionalGeneration", "WhisperModel"),
    "vit": ("ViTModel", "ViTForImageClassification"),
}
"""File in this folder -> architectures (the class names of `architectures` in config.json) that it builds."""

MODEL_TYPES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""model_type -> architecture, for configurations without `architectures`."""

_FILE_OF = {architecture: file for file, names in FAMILIES.items() for architecture in names}


def supported() -> list[str]:
    """All architectures, sorted."""
    return sorted(_FILE_OF)


def build(fields: Mapping[str, Any], name: str = "", path: str = "model.config") -> Network:
    """The network that a config.json describes. Raises Unsupported for an architecture that no file builds, BadInput for a damaged config."""
    config = Config(fields, path, name)
    architecture = config.architecture or MODEL_TYPES.get(config.model_type, "")
    file = _FILE_OF.get(architecture)
    if file is None:
        asked = architecture or config.model_type
        if not asked:
            raise Unsupported(f"{path}.architectures", "is missing, and so is model_type: the file does not say what the model is")
        raise Unsupported(f"{path}.architectures", f"{asked} is not supported{did_you_mean(asked, _FILE_OF)}; `everybyte models --architectures` lists all")
    if not config.architecture:
        config = Config({**fields, "architectures": [architecture]}, path, name)
    builder: Callable[[Config], Network] = import_module(f"everybyte.models.{file}").build
    return builder(config)
