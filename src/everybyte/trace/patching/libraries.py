"""Models of torchvision, timm and diffusers by their names, built without weights: nothing is downloaded."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from everybyte.basics.errors import BadInput, did_you_mean

TARGET = "target"
IMAGES = "32,3,224,224"
"""The --input of a model whose library says nothing else: 32 images of ImageNet's usual size."""


class Library(NamedTuple):
    """What a library says of the models that it knows by name."""

    names: Callable[[], Collection[str]]
    build: Callable[[str], Any]
    images: Callable[[str], str]
    """The --input that suits a model."""


class Named(NamedTuple):
    """A model that a target names."""

    build: Callable[[], Any]
    images: str


def is_library(place: str) -> bool:
    """Whether `place:name` names a model of a library, not a function of a module."""
    return place in LIBRARIES


def model_named(text: str) -> Named:
    """The model of a name, `resnet50` or `timm:resnet50`. Raises BadInput where no library that is installed has it, or more than one."""
    prefix, _, name = text.rpartition(":")
    there = {word: library for word, library in LIBRARIES.items() if word in (prefix or word) and find_spec(word)}
    if prefix and not there:
        raise BadInput(TARGET, f"{prefix} is not installed here")
    known = {word: library.names() for word, library in there.items()}
    having = [word for word, names in known.items() if name in names]
    if len(having) > 1:
        raise BadInput(TARGET, f"{' and '.join(having)} each have a model {name!r}: write {' or '.join(f'{word}:{name}' for word in having)}")
    if not having:
        near = did_you_mean(name, [name for names in known.values() for name in names])
        raise BadInput(TARGET, f"{text!r} is {f'no model of {prefix}' if prefix else _what_it_could_be(there)}{near}")
    library = there[having[0]]
    return Named(lambda: library.build(name), library.images(name))


def _what_it_could_be(there: Collection[str]) -> str:
    missing = " and ".join(word for word in LIBRARIES if word not in there)
    installed = f"; not installed here: {missing}" if missing else ""
    return f"neither module:function, nor a script that ends in .py, nor a job file, nor a model of {', '.join(LIBRARIES)}{installed}"


def _models_of_torchvision() -> Any:
    return import_module("torchvision.models")


def _build_torchvision(name: str) -> Any:
    builder = _models_of_torchvision().get_model_builder(name)
    # a detector asks for the weights of its backbone beside its own
    without = {key: None for key in ("weights", "weights_backbone") if key in inspect.signature(builder).parameters}
    return builder(**without)


def _images_of_torchvision(name: str) -> str:
    weights = getattr(_models_of_torchvision().get_model_weights(name), "DEFAULT", None)
    side = getattr(getattr(weights, "transforms", None), "keywords", {}).get("crop_size")
    return f"32,3,{side},{side}" if side else IMAGES


def _images_of_timm(name: str) -> str:
    facts = import_module("timm.models").get_pretrained_cfg(name)
    return ",".join(map(str, (32, *facts.input_size))) if facts else IMAGES


def _names_of_diffusers() -> list[str]:
    # by their names alone: to look at the classes would import them all
    return [name for name in dir(import_module("diffusers")) if name.endswith("Model") or "Autoencoder" in name]


LIBRARIES = {
    "torchvision": Library(lambda: _models_of_torchvision().list_models(), _build_torchvision, _images_of_torchvision),
    "timm": Library(lambda: import_module("timm").list_models(), lambda name: import_module("timm").create_model(name), _images_of_timm),
    "diffusers": Library(_names_of_diffusers, lambda name: getattr(import_module("diffusers"), name)(), lambda _: "2,4,64,64"),
}
