"""A figure that a log states, and all that one log states."""

from __future__ import annotations

from typing import Any

import msgspec

from everybyte.basics.record import Record

SCHEMA = 1
UNITS = {"kv.tokens": "tokens", "kv.blocks": "blocks", "kv.block_size": "tokens", "kv.concurrency": "x", "encoder_cache.tokens": "tokens"}
"""Figures that are no bytes."""


class Figure(Record, frozen=True):
    """One figure as it was printed: `value` and `resolution` (of the last digit) in `unit`."""

    figure: str
    rank: str
    """As printed: `0`, `TP1`, `CUDA0`; `any` where the line names none, `sum` of several lines."""
    value: float
    unit: str
    resolution: float
    line: int


class StartLog(Record, frozen=True):
    """What a log states."""

    engine: str | None
    version: str | None
    measured: tuple[Figure, ...]
    given: dict[str, float] = msgspec.field(default_factory=dict)
    """Plain facts beside the figures: capacity, budget, memory_fraction, free_before_load, free_after_weights, cuda_graphs_estimate, theory.*"""

    def as_dict(self) -> dict[str, Any]:
        """The contract's form."""
        rows = [{name: _whole(getattr(one, name)) for name in one.__struct_fields__} for one in self.measured]
        return {"schema": SCHEMA, "engine": self.engine, "version": self.version, "measured": rows, "given": {k: _whole(v) for k, v in self.given.items()}}


def _whole(value: Any) -> Any:
    """A whole number without a fraction where it has none."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
