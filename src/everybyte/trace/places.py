"""Where a storage belongs: the path of its module as a place of the ledger, in the words that `estimate` uses for the same network."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_model", "module"})
"""Modules that only hold another one: torch.compile, FSDP, activation checkpointing, PEFT, DistributedDataParallel."""
LAYERS = frozenset({"layers", "h", "blocks", "block", "layer"})
"""How models call their list of layers; `estimate` calls it layers."""
KNOWN = {
    "embed_tokens": "embed/model", "wte": "embed/model", "wpe": "embed/positions", "tok_embeddings": "embed/model", "embed_in": "embed/model",
    "norm": "norm/model", "ln_f": "norm/model", "final_layer_norm": "norm/model", "final_layernorm": "norm/model",
    "lm_head": "head/lm_head", "output": "head/lm_head", "embed_out": "head/lm_head",
}  # fmt: skip
"""Modules outside the layers that every language model has."""
LOSS = "head/loss"
"""What the program makes outside all modules, or in the outermost one."""
BLOCK = "block"
"""What a layer makes itself, outside its modules."""


class Place(NamedTuple):
    """A place: `layers`, 3, `mlp`; outside lists of layers only the last."""

    container: str
    number: int | None
    name: str

    def __str__(self) -> str:
        return self.name if self.number is None else f"{self.container}.{self.number}/{self.name}"


def place_of(module: str) -> Place:
    """The place of a module's path, which begins with the class of the outermost module."""
    parts = [part for part in module.split(".")[1:] if part not in WRAPPERS]
    at = next((index for index, part in enumerate(parts) if part.isdigit()), None)
    if at:
        container = "layers" if parts[at - 1] in LAYERS else parts[at - 1]
        return Place(container, int(parts[at]), parts[at + 1] if len(parts) > at + 1 else BLOCK)
    if not parts:
        return Place("", None, LOSS)
    known = next((KNOWN[part] for part in parts if part in KNOWN), None)
    return Place("", None, known or "/".join(parts))


def runs(places: Iterable[Place]) -> dict[Place, str]:
    """How each place is written when neighbours with the same name are taken together: `layers.0-31/mlp`."""
    numbers: dict[tuple[str, str], set[int]] = {}
    found = list(places)
    for place in found:
        if place.number is not None:
            numbers.setdefault((place.container, place.name), set()).add(place.number)
    written: dict[Place, str] = {}
    for place in found:
        if place.number is None:
            written[place] = place.name
        else:
            low, high = _run(sorted(numbers[place.container, place.name]), place.number)
            written[place] = f"{place.container}.{low}/{place.name}" if low == high else f"{place.container}.{low}-{high}/{place.name}"
    return written


def _run(numbers: list[int], number: int) -> tuple[int, int]:
    """The ends of the unbroken run of whole numbers that holds a number."""
    low = high = number
    present = set(numbers)
    while low - 1 in present:
        low -= 1
    while high + 1 in present:
        high += 1
    return low, high


def is_layer_path(module: str) -> bool:
    """Whether a path leads through a numbered list."""
    return re.search(r"\.\d+(\.|$)", module) is not None
