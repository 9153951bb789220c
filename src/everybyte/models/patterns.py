"""Layer patterns: which layer has which kind, and runs of equal ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from everybyte.basics.errors import BadInput
from everybyte.layers.network import Run
from everybyte.models.config import Config


def runs_of(prefix: str, layers: Sequence[Any]) -> tuple[Run, ...]:
    """Runs of equal consecutive layers, named `{prefix}.{index}`."""
    runs = []
    first = 0
    for layer, group in groupby(layers):
        count = len(list(group))
        runs.append(Run(prefix, first, count, layer))
        first += count
    return tuple(runs)


def sliding_layers(c: Config, count: int, *, period: int = 0, first: bool = False) -> list[bool]:
    """Which layers attend in a sliding window: as `layer_types` says; else of every `period` layers all but the last (the first, if `first`)."""
    types = c.texts("layer_types")
    if types:
        if len(types) != count:
            raise BadInput(f"{c.path}.layer_types", f"must name the type of every layer: {len(types)} types for {count} layers")
        return [kind == "sliding_attention" for kind in types]
    if period <= 0:
        return [False] * count
    return [(index % period == 0) if first else bool((index + 1) % period) for index in range(count)]


def kinds(c: Config, key: str, count: int, known: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
    """The kind of every layer out of a list of words, checked against the number of layers and the known words."""
    words = c.texts(key, tuple(default))
    if len(words) < count:
        raise BadInput(f"{c.path}.{key}", f"must name the kind of every layer: {len(words)} words for {count} layers")
    wrong = next((word for word in words if word not in known), None)
    if wrong is not None:
        raise BadInput(f"{c.path}.{key}", f"unknown kind of layer {wrong!r}; known: {', '.join(known)}")
    return words[:count]


def flags(c: Config, key: str, count: int) -> tuple[bool, ...]:
    """One 0 or 1 a layer; empty where the field is missing."""
    values = c.integers(key)
    if values and len(values) < count:
        raise BadInput(f"{c.path}.{key}", f"must have an entry for every layer: {len(values)} for {count} layers")
    return tuple(bool(value) for value in values[:count])
