"""Slots for adapters that a server keeps on the device: a pair of factors in every linear layer, for each slot, of the largest rank."""

from __future__ import annotations

from functools import lru_cache

from everybyte.basics.record import Record
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.ledger.build import Line, plain
from everybyte.rules.step.persistent_state import Share, groups

SOURCE = "sglang lora/mem_pool.py, vllm lora/layers, text-generation-inference lora.py: buffers for all slots are made at the start"


class Slots(Record, frozen=True):
    """Adapters that are held at once."""

    count: int
    rank: int
    targets: tuple[str, ...] = ()
    """Last parts of the names of adapted modules; empty: all linear layers of the blocks."""


@lru_cache(maxsize=256)
def slot_lines(network: Network, setup: Setup, share: Share, slots: Slots | None) -> tuple[Line, ...]:
    """One row for all slots; none without them. A rank has its part of the wider factor."""
    if slots is None:
        return ()
    width = 0
    for group in groups(network, setup, share):
        for p in group.members:
            module = p.name.removesuffix(".weight").rsplit(".", 1)[-1]
            is_linear = len(p.dims) == 2 and p.name.endswith(".weight") and "norm" not in p.name and group.part not in ("embed", "head")
            if is_linear and (not slots.targets or module in slots.targets):
                width += group.copies * p.count * (p.dims[0].size + p.dims[1].size)
    each = setup.weights.block_bytes if setup.weights.bits <= 16 else 2
    size = each * slots.count * slots.rank * width
    return (Line("lora/slots", "parameter", size, plain("e·slots·r·w", e=each, slots=slots.count, r=slots.rank, w=width), SOURCE, "formula"),)
