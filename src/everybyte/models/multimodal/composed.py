"""What vision-language models have in common: a language model out of the `text_config`, and towers beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from everybyte.layers.network import Network, Tower
from everybyte.models.config import Config

CLASS_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    },
    "mistral": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
}
"""model_type -> what the configuration class fills in where a text_config leaves it out (configuration_llama.py, configuration_mistral.py)."""

INHERITED = ("tie_word_embeddings", "torch_dtype", "dtype")
"""Fields of the whole that hold for the language model where its own part is silent."""


def with_towers(c: Config, architecture: str, towers: tuple[Tower, ...]) -> Network:
    """The language model of `text_config` (of the config itself, where there is none) built as `architecture`, with towers beside it."""
    from everybyte.models.registry import build

    part = c.part("text_config", "llm_config")
    inherited = {key: c.fields[key] for key in INHERITED if key in c.fields}
    fields = {**CLASS_DEFAULTS.get(part.model_type, {}), **inherited, **part.fields, "architectures": [architecture]}
    text = build(fields, c.name, part.path)
    return replace(text, family=c.model_type, towers=towers)
