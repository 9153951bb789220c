"""Where a storage belongs: the path of its module as a place of the ledger, in the words that `estimate` uses for the same network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "module"})
"""Modules that only hold another one: torch.compile, FSDP, activation checkpointing, DistributedDataParallel."""
PEFT = ["base_model", "model"]
"""What peft puts before the path of the model that it adapts."""
ADAPTERS = ("lora_", "vera_", "adapter_")
"""How peft calls the modules that it adds beside a layer."""
PIECES = {
    **dict.fromkeys(("embed_tokens", "wte", "wpe", "tok_embeddings", "embed_in", "embed_positions", "word_embeddings", "word_embeddings_layernorm"), "embed"),
    **dict.fromkeys(("norm", "ln_f", "final_layer_norm", "final_layernorm"), "norm"),
    **dict.fromkeys(("lm_head", "output", "embed_out"), "head"),
}
"""Modules outside the layers that every language model has, and the piece of the network that they are."""
EMBED_DROPOUT = frozenset({"drop", "embed_dropout", "emb_dropout"})
OWN = frozenset({"activation_fn", "resid_attn_dropout", "resid_mlp_dropout", "resid_dropout", "dropout", "post_attention_dropout", "post_mlp_dropout"})
"""Modules of a layer that hold no weights: what they make is the layer's own."""
LOSS = "head/loss"
"""What the program makes outside all modules, in the outermost one, or in the head."""
BLOCK = "block"
"""What a layer makes itself, outside its modules."""
INPUT = "input"
"""What a piece of the network is given by the one before."""


class Place(NamedTuple):
    """A place: `layers`, 3, `mlp`. Outside lists of layers only the last, as `norm/model`; a whole layer has no last."""

    container: str
    number: int | None
    name: str

    @property
    def piece(self) -> str:
        """The layer, or what else the network is made of: `layers.3`, `norm`."""
        return self.name.partition("/")[0] if self.number is None else f"{self.container}.{self.number}"

    @property
    def whole(self) -> Place:
        """The piece as a place."""
        return Place("", None, self.piece) if self.number is None else self._replace(name="")

    def within(self, name: str) -> Place:
        """Another place in the same piece."""
        return Place("", None, f"{self.piece}/{name}") if self.number is None else self._replace(name=name)

    def __str__(self) -> str:
        return self.name if self.number is None else self.written(self.number, self.number)

    def written(self, low: int, high: int) -> str:
        """The place in the layers from `low` to `high`."""
        numbers = str(low) if low == high else f"{low}-{high}"
        return f"{self.container}.{numbers}" + (f"/{self.name}" if self.name else "")


def place_of(module: str) -> Place:
    """The place of a module's path, which begins with the class of the outermost module."""
    parts = _inside(module)
    if parts[:2] == PEFT:
        parts = parts[2:]
    at = next((index for index, part in enumerate(parts) if part.isdigit()), None)
    if at:
        name = parts[at + 1] if len(parts) > at + 1 else BLOCK
        return Place(parts[at - 1], int(parts[at]), BLOCK if name in OWN else name)
    if not parts:
        return Place("", None, LOSS)
    if EMBED_DROPOUT.intersection(parts):
        return Place("", None, f"embed/{BLOCK}")
    piece = next((PIECES[part] for part in parts if part in PIECES), None)
    if piece is None:
        return Place("", None, "/".join(parts))
    return Place("", None, LOSS if piece == "head" else f"{piece}/{parts[0] if len(parts) > 1 else piece}")


def _inside(module: str) -> list[str]:
    """The names that lead from the outermost module to this one."""
    return [part for part in module.split(".")[1:] if part not in WRAPPERS]


def home_of(module: str, parameter: str) -> str:
    """The path by which a parameter goes: that of its module, or in the outermost one, whose place is the loss, its own: `ViT.cls_token`."""
    return module if _inside(module) else f"{module}.{parameter}"


def is_adapter(module: str) -> bool:
    """Whether a path leads to what peft adds beside a layer."""
    return any(part.startswith(ADAPTERS) for part in module.split("."))


def takes_over(module: str) -> bool:
    """Whether a module is a whole piece of a network, that is given what the piece before made: a layer, the final norm, the head."""
    place = place_of(module)
    if place.number is None:
        return place.piece in ("norm", "head") and module.rpartition(".")[2] in PIECES
    return module.rpartition(".")[2].isdigit() and place.name == BLOCK


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
            written[place] = place.written(*_run(numbers[place.container, place.name], place.number))
    return written


def _run(present: set[int], number: int) -> tuple[int, int]:
    """The ends of the unbroken run of whole numbers that holds a number."""
    low = high = number
    while low - 1 in present:
        low -= 1
    while high + 1 in present:
        high += 1
    return low, high
