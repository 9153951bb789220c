"""The one door from a job's `model` to a Network: catalogue names, files, the hub, inline configurations and shapes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.catalog.models import all_models, find_model, model_config
from everybyte.job import InlineModel
from everybyte.layers.network import Network
from everybyte.models.registry import build

if TYPE_CHECKING:
    from everybyte.checkpoint import Checkpoint

MARKS = ("/", "./", "../", "~", ".\\", "..\\")
"""How a path begins that is no catalogue name whatever it is called."""
FILES = (".json", ".safetensors", ".gguf")
"""How the name of a model file ends."""
KEPT = 64
"""Networks of so many models are kept, so that asking again costs microseconds."""

LONGEST_NAME = 100
"""Characters of a name that a message repeats."""
WITHOUT_FILES = "use a catalogue name, or give the fields of its config.json: {config: {...}}"
"""The way out behind a closed door."""

_door = {"closed": False}

ModelSource = str | InlineModel | Mapping[str, Any]
"""A catalogue name, a path, `hf:ORG/NAME`, or `{config: {...}}` or `{shape: {...}}`."""


def close_door() -> None:
    """From now on this process opens no file and asks no hub for a model, whatever a job says: only catalogue names and inline models are answered.

    For processes that answer strangers. There is no way back, so that nothing a job holds can find one.
    """
    _door["closed"] = True


def network_of(model: ModelSource, path: str = "model") -> Network:
    """The network of a job's model; the same object for the same model.

    Raises BadInput with the place for what is missing, damaged or unknown, Unsupported for an architecture that no family builds.
    """
    if isinstance(model, str):
        return _of_checkpoint(model, _stamp(model), path) if _points_at_files(model, path) else _named(model, path)
    if isinstance(model, InlineModel):
        return _inline(msgspec.json.encode(model, order="sorted"), path)
    if not isinstance(model, Mapping) or len(model) != 1 or next(iter(model)) not in ("config", "shape"):
        raise BadInput(path, "must be a name, a path, or a mapping with exactly one of config, shape")
    try:
        return _inline(msgspec.json.encode(model, order="sorted"), path)
    except (TypeError, RecursionError) as error:
        raise BadInput(path, f"holds what a JSON file cannot: {error}") from None


def model_type_of(model: ModelSource) -> str:
    """`model_type` of a model's config.json; empty for a shape. The model is one that `network_of` has answered."""
    if isinstance(model, str):
        found = checkpoint_of(model)
        return str((found.config or {}).get("model_type") or "") if found is not None else find_model(model).model_type
    fields = msgspec.to_builtins(model)
    return str((fields.get("config") or {}).get("model_type") or "")


def checkpoint_of(model: ModelSource) -> Checkpoint | None:
    """The files that the model points at, with the exact type and bytes of every stored tensor; None for a name or an inline model."""
    return _checkpoint(model, _stamp(model)) if isinstance(model, str) and _points_at_files(model) else None


def _points_at_files(name: str, path: str = "model") -> bool:
    """A path or a repository; a plain word is one if it exists here and no model of the catalogue is called so. Raises BadInput behind a closed door."""
    if _door["closed"]:
        _refuse_unless_in_catalogue(name, path)
        return False
    if name.startswith(("hf:", *MARKS)) or name.lower().endswith(FILES):
        return True
    try:
        find_model(name)
    except BadInput:
        return "\0" not in name and os.path.exists(name)
    return False


def _refuse_unless_in_catalogue(name: str, path: str) -> None:
    if len(name) <= LONGEST_NAME and not name.startswith(("hf:", *MARKS)) and not name.lower().endswith(FILES):
        with suppress(BadInput):
            find_model(name, path)
            return
    near = did_you_mean(name[:LONGEST_NAME], (row.name for row in all_models()))
    shown = repr(name if len(name) <= LONGEST_NAME else name[:LONGEST_NAME] + "...")
    raise BadInput(path, f"{shown} is no name of the catalogue{near}, and no file or hub is read here; {WITHOUT_FILES}")


def _stamp(name: str) -> tuple[int, int]:
    """Time and size of what a path names, so that a changed file is read anew; (0, 0) where there is none."""
    try:
        status = os.stat(os.path.expanduser(name))
    except (OSError, ValueError):
        return 0, 0
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=KEPT)
def _named(name: str, path: str) -> Network:
    return build(model_config(name, path), find_model(name, path).name, path)


@lru_cache(maxsize=KEPT)
def _checkpoint(name: str, stamp: tuple[int, int]) -> Checkpoint:
    from everybyte.checkpoint import read_checkpoint

    return read_checkpoint(name)


@lru_cache(maxsize=KEPT)
def _of_checkpoint(name: str, stamp: tuple[int, int], path: str) -> Network:
    checkpoint = _checkpoint(name, stamp)
    if checkpoint.config is None:
        raise BadInput(path, f"{name} holds no config.json, and tensors alone do not say how they are used; give the folder, or the config.json itself")
    return build(checkpoint.config, checkpoint.name, f"{path} ({checkpoint.name})")


@lru_cache(maxsize=KEPT)
def _inline(text: bytes, path: str) -> Network:
    fields = msgspec.json.decode(text)
    if fields.get("shape") is not None:
        from everybyte.models.shape import network_of_shape

        return network_of_shape(fields["shape"], f"{path}.shape")
    if not isinstance(fields.get("config"), dict):
        raise BadInput(f"{path}.config", "must be a mapping: the fields of a config.json")
    return build(fields["config"], "", f"{path}.config")
