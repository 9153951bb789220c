"""One row of a ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import msgspec

from everybyte.basics.units import show_bytes

Category = Literal[
    "parameter",
    "gradient",
    "optimizer_state",
    "activation",
    "input",
    "temporary",
    "autograd_detail",
    "kv_cache",
    "state",
    "comm_buffer",
    "workspace",
    "context",
    "graph_pool",
    "fragmentation",
    "unknown",
]
"""What a row is. The first seven are the names of PyTorch's own memory profiler."""

Basis = Literal["exact", "formula", "calibrated", "assumed"]
"""How a row is known: counted from declared tensors, by a published or documented rule, learnt from measured runs, or taken for granted."""

Phase = Literal[
    "load",
    "init",
    "forward",
    "loss",
    "backward",
    "optimizer",
    "between_steps",
    "eval",
    "save",
    "profile",
    "capture",
    "prefill",
    "decode",
]

TRAIN_PHASES: tuple[Phase, ...] = ("load", "init", "forward", "loss", "backward", "optimizer", "between_steps", "eval", "save")
SERVE_PHASES: tuple[Phase, ...] = ("load", "profile", "capture", "prefill", "decode")
CATEGORIES: tuple[Category, ...] = get_args(Category)
OUTSIDE_ALLOCATOR: frozenset[Category] = frozenset({"context"})
"""Categories that nvidia-smi shows and torch's allocator does not know of."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes with a name. `id` is a path such as `weights/layers.0-31/mlp`; the same id means the same thing in any two ledgers.

    `phases` lists the phases in which the bytes live. `formula` is written in the field's letters and `symbols` gives their values.
    """

    id: str
    """Path such as `weights/layers.0-31/mlp`."""
    category: Category
    bytes: int
    """Bytes on one GPU of this kind of rank."""
    phases: tuple[Phase, ...]
    """The phases in which the bytes live."""
    formula: str
    """How the bytes come about, in the letters of the field."""
    symbols: dict[str, int]
    """Values of the letters."""
    source: str
    """Paper and equation, or the code that allocates."""
    basis: Basis = "exact"
    """How the row is known."""
    low: int | None = None
    """Least bytes, where something decides that the job does not say."""
    high: int | None = None
    """Most bytes."""

    def __repr__(self) -> str:
        """One line: id, category and size."""
        return f"<Entry {self.id!r}: {self.category}, {show_bytes(self.bytes)}>"

    def numbers(self) -> str:
        """The formula with the numbers put in: `2·n·f` with n=8192 becomes `2·8,192·14,336`."""
        return put_in(self.formula, self.symbols)


def put_in(formula: str, symbols: Mapping[str, int]) -> str:
    """Replaces each letter of a formula by its value. A letter is a whole word; what has no value stays."""
    out, word = [], ""
    for char in formula + " ":
        if char.isalnum() or char == "_":
            word += char
            continue
        out.append(f"{symbols[word]:,}" if word in symbols else word)
        out.append(char)
        word = ""
    return "".join(out)[:-1]


Explain = Callable[[], tuple[str, dict[str, int]]]
"""Writes formula and symbols of a row when somebody reads them."""
