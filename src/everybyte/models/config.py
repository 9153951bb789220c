"""Reading a config.json: typed fields, missing and contradictory ones named with their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everybyte.basics.dtypes import BF16, DType, dtype
from everybyte.basics.errors import BadInput

LIMIT = 2**40
"""No dimension of a network is larger: a bigger number is a damaged or hostile file."""
MOST = {
    **dict.fromkeys(
        (
            "num_hidden_layers",
            "n_layer",
            "n_layers",
            "num_layers",
            "num_decoder_layers",
            "encoder_layers",
            "decoder_layers",
            "depth",
            "num_single_layers",
            "vt_num_hidden_layers",
        ),
        10_000,
    ),
    **dict.fromkeys(("layers_per_block", "transformer_layers_per_block", "hc_sinkhorn_iters"), 100),
    **dict.fromkeys(
        (
            "num_attention_heads",
            "n_head",
            "n_heads",
            "num_heads",
            "num_key_value_heads",
            "moe_num_experts",
            "num_experts",
            "num_local_experts",
            "n_routed_experts",
        ),
        65_536,
    ),
}
"""Field -> a number that no network exceeds, for things that are written out one by one: layers, blocks, heads, experts."""


def shorten(value: object) -> str:
    """A value out of a file, short enough for a message."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else f"{'-' if value < 0 else ''}a number of {value.bit_length()} bits"
    return text if len(text) <= 100 else text[:97] + "..."


class Config:
    """The fields of one config.json (or of a part of it), read with their path."""

    def __init__(self, fields: Mapping[str, Any], path: str = "model.config", name: str = "") -> None:
        self.fields = fields
        self.path = path
        self.name = name

    @property
    def architecture(self) -> str:
        """First of `architectures`, or diffusers' `_class_name`, or empty."""
        listed = self.fields.get("architectures")
        return str(listed[0]) if isinstance(listed, list) and listed else str(self.fields.get("_class_name") or "")

    @property
    def model_type(self) -> str:
        """`model_type`, or empty."""
        return str(self.fields.get("model_type") or "")

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self.fields.get(key) is not None

    def part(self, *keys: str) -> Config:
        """A nested configuration (`text_config`, `vision_config`); the config itself when none of the keys is there."""
        for key in keys:
            found = self.fields.get(key)
            if isinstance(found, Mapping):
                return Config(found, f"{self.path}.{key}", self.name)
            if found is not None:
                raise BadInput(f"{self.path}.{key}", f"must be a mapping, not {shorten(found)}")
        return self

    def with_defaults(self, defaults: Mapping[str, Any]) -> Config:
        """The same with values for fields that are not there or null."""
        return Config({**defaults, **{k: v for k, v in self.fields.items() if v is not None or k not in defaults}}, self.path, self.name)

    def integer(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """The first of the keys that is set, as a whole number of at least `least`. Raises BadInput when it is missing or wrong."""
        key = next((k for k in keys if self.fields.get(k) is not None), None)
        if key is None:
            if default is None:
                raise BadInput(f"{self.path}.{keys[0]}", f"is missing, and {self.architecture or self.model_type or 'the model'} needs it")
            return default
        value = self.fields[key]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        most = MOST.get(key, LIMIT)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise BadInput(f"{self.path}.{key}", f"must be a whole number from {least:,} to {'2^40' if most == LIMIT else f'{most:,}'}, not {shorten(value)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean field."""
        value = self.fields.get(key)
        if value is None:
            return default
        if not isinstance(value, bool | int):
            raise BadInput(f"{self.path}.{key}", f"must be true or false, not {shorten(value)}")
        return bool(value)

    def number(self, *keys: str, default: float = 0.0) -> float:
        """A number field, such as a dropout rate."""
        key = next((k for k in keys if self.fields.get(k) is not None), None)
        if key is None:
            return default
        value = self.fields[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LIMIT:  # NaN is not
            raise BadInput(f"{self.path}.{key}", f"must be a number, not {shorten(value)}")
        return float(value)

    def text(self, *keys: str, default: str) -> str:
        """A text field."""
        key = next((k for k in keys if self.fields.get(k) is not None), None)
        if key is None:
            return default
        if not isinstance(self.fields[key], str):
            raise BadInput(f"{self.path}.{key}", f"must be text, not {shorten(self.fields[key])}")
        return str(self.fields[key])

    def integers(self, key: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """A list of whole numbers."""
        value = self.fields.get(key)
        if value is None:
            return default
        if not isinstance(value, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            raise BadInput(f"{self.path}.{key}", "must be a list of whole numbers")
        return tuple(value)

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """A list of texts."""
        value = self.fields.get(key)
        if value is None:
            return default
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise BadInput(f"{self.path}.{key}", "must be a list of texts")
        return tuple(value)

    def dtype(self) -> DType:
        """Type of the checkpoint's weights (`torch_dtype` or `dtype`); bf16 where the file is silent."""
        value = self.fields.get("dtype") or self.fields.get("torch_dtype")
        return dtype(value, f"{self.path}.torch_dtype") if isinstance(value, str) and value != "auto" else BF16

    def heads(self, hidden: int) -> tuple[int, int, int]:
        """(heads, kv_heads, head_dim), checked against each other."""
        heads = self.integer("num_attention_heads", "n_head", "num_heads")
        kv_heads = self.integer("num_key_value_heads", default=heads)
        head_dim = self.integer("head_dim", default=max(hidden // heads, 1))
        if heads % kv_heads:
            raise BadInput(f"{self.path}.num_key_value_heads", f"must divide num_attention_heads: {kv_heads} does not divide {heads}")
        if not self.has("head_dim") and hidden % heads:
            raise BadInput(f"{self.path}.num_attention_heads", f"must divide hidden_size ({hidden}) unless head_dim is given, and {heads} does not")
        return heads, kv_heads, head_dim

    def divides(self, key: str, part: int, whole: int) -> None:
        """Raises BadInput unless the field `key`, which is `part`, divides `whole`."""
        if whole % part:
            raise BadInput(f"{self.path}.{key}", f"must divide {whole}, and {part} does not")

    def activation(self, default: str = "silu", *keys: str) -> str:
        """The activation function by the name that `layers.mlp` uses; `keys` where the family calls it otherwise."""
        asked = keys or ("hidden_act", "activation_function", "hidden_activation", "hidden_activation_function")
        name = self.text(*asked, default=default)
        known = ACTIVATIONS.get(name)
        if known is None:
            key = next((k for k in asked if self.has(k)), asked[0])
            raise BadInput(f"{self.path}.{key}", f"unknown activation function {name!r}; known: {', '.join(sorted(ACTIVATIONS))}")
        return known


ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_fast",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "gelu_python": "gelu",
}
"""HF activation names (transformers activations.py ACT2FN)."""
