"""Where rows are, whichever layers they are of: `layers.0-7/mlp` and `layers.8-15/mlp` are the place `layers/mlp`, 16 layers of it."""

from __future__ import annotations

import re

from everybyte.ledger.entry import Entry

NUMBERS = re.compile(r"\.(\d+)(?:-(\d+))?(?=/|$)")
"""The numbers of layers in a place: `.0-31` of `layers.0-31/mlp`."""


def place(entry: Entry) -> str:
    """Where the bytes of an entry are: its id without the leading group."""
    head, _, rest = entry.id.partition("/")
    return rest or head


def without_numbers(name: str) -> str:
    """A place without the numbers of its layers."""
    return NUMBERS.sub("", name)


def layers_of(name: str) -> int:
    """How many layers a place is of; 1 outside layers."""
    found = NUMBERS.search(name)
    if found is None:
        return 1
    low, high = found.groups()
    return int(high or low) - int(low) + 1
