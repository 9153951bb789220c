"""The one door from a job's `model` to a Network: catalogue names, files, the hub, inline configurations and shapes."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.catalog.models import find_model, model_config
from everybyte.job import InlineModel
from everybyte.layers.network import Network
from everybyte.models.registry import build


def network_of(model: str | InlineModel, path: str = "model") -> Network:
    """The network of a job's model; the same object for the same model. Raises BadInput with the place."""
    if isinstance(model, str):
        return _named(model, path)
    return _inline(msgspec.json.encode(model, order="sorted"), path)


@lru_cache(maxsize=64)
def _named(name: str, path: str) -> Network:
    if name.startswith("hf:") or name.endswith((".json", ".safetensors", ".gguf")) or "/" == name[:1] or name[:2] == "./":
        from everybyte.checkpoint import read_checkpoint

        checkpoint = read_checkpoint(name)
        if checkpoint.config is None:
            raise BadInput(path, f"{name} holds no config.json, and tensors alone do not say how they are used")
        return build(checkpoint.config, checkpoint.name, f"{path} ({checkpoint.name})")
    return build(model_config(name, path), find_model(name, path).name, path)


@lru_cache(maxsize=64)
def _inline(text: bytes, path: str) -> Network:
    fields = msgspec.json.decode(text)
    if "config" in fields:
        return build(fields["config"], "", f"{path}.config")
    from everybyte.models.shape import network_of_shape

    return network_of_shape(fields["shape"], f"{path}.shape")
