"""How far measured runs lie from predictions, by figure and kind of job: the intervals that answers state.

`data/ranges.json` is written by `everybyte.measure.learn` from the measured runs that ship with the package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from os.path import dirname, join
from typing import Any, NamedTuple

import msgspec

Ends = tuple[float, float]
"""The ends of an interval, the lower first."""


class Spread(NamedTuple):
    """Measured over predicted: 9 of 10 measured runs of this kind lie between `low` and `high`."""

    low: float
    high: float
    runs: int
    groups: int
    is_of_engine: bool = False
    """Learnt from runs of the job's own engine, not of all."""

    @property
    def weight(self) -> tuple[bool, int]:
        """Of two that contradict one another, the greater is believed."""
        return self.is_of_engine, self.runs


def kinds(section: str, engine: str, several: bool) -> tuple[str, ...]:
    """Keys of the table for a job, the closest kind first: `train/litgpt`, then `train`; on several GPUs `train, several/megatron`."""
    kind = f"{section}, several" if several else section
    return f"{kind}/{engine}", kind


@cache
def _table() -> dict[str, Any]:
    with open(join(dirname(__file__), "data", "ranges.json"), "rb") as file:  # pathlib takes milliseconds to import
        return msgspec.json.decode(file.read(), type=dict[str, Any])


def spread(figure: str, section: str, engine: str, several: bool = False) -> Spread | None:
    """The spread of a figure for a kind of job, or None where no measured run tells."""
    rows = _table().get(figure, {})
    for kind in kinds(section, engine, several):
        if kind in rows:
            return Spread(**rows[kind], is_of_engine="/" in kind)
    return None


def _ends(predicted: float, found: Spread) -> Ends:
    """The values between which the measured one is expected 9 times of 10: whole ones (bytes, tokens) but of figures that have a fraction (kv.concurrency).
    The lower end comes first, also of a figure below zero."""
    low, high = sorted((predicted * found.low, predicted * found.high))
    return (round(low, 4), round(high, 4)) if isinstance(predicted, float) else (int(low), int(high))


PARTS: tuple[tuple[str, str], ...] = (
    ("static.allocated", "peak.allocated"),
    ("peak.allocated", "peak.reserved"),
    ("weights", "peak.device"),
    ("kv.pool", "peak.device"),
    ("peak.allocated", "peak.device"),
    ("peak.reserved", "peak.device"),
)
"""(part, whole), the inner ones first: a run never measures more of the first than of the second."""


def intervals(figures: Mapping[str, float], section: str, engine: str, several: bool = False) -> dict[str, Ends]:
    """The interval of each figure for which measured runs tell one. No two contradict one another: see PARTS and `_of_pages`."""
    spreads = {name: found for name in figures if (found := spread(name, section, engine, several)) is not None}
    ends = {name: _ends(figures[name], found) for name, found in spreads.items()}
    return _nested(ends | _of_pages(figures, ends), figures, spreads)


def _of_pages(figures: Mapping[str, float], ends: Mapping[str, Ends]) -> dict[str, Ends]:
    """Tokens of a cache whose pages hold nothing else: so many pages, so many tokens."""
    size = int(figures.get("kv.block_size", 0))
    if "kv.blocks" not in ends or "kv.tokens" not in figures or figures["kv.tokens"] != figures["kv.blocks"] * size:
        return {}
    low, high = ends["kv.blocks"]
    return {"kv.tokens": (int(low) * size, int(high) * size)}


ROUNDS = 3
"""Settling one pair can unsettle another; what is left after so many rounds is cut."""


def _nested(ends: dict[str, Ends], figures: Mapping[str, float], spreads: Mapping[str, Spread]) -> dict[str, Ends]:
    """The intervals in an order that PARTS leave possible: a whole begins and ends no lower than its part. Of two that contradict one another, the one
    gives way that is less known (`Spread.weight`): the whole is raised to its part, or the part cut to its whole."""
    pairs = [(part, whole) for part, whole in PARTS if part in ends and whole in ends and figures[part] <= figures[whole]]
    for _ in range(ROUNDS):
        for part, whole in pairs:
            if part in spreads and whole in spreads and spreads[part].weight >= spreads[whole].weight:
                ends[whole] = _each(max, ends[part], ends[whole])
            else:
                ends[part] = _each(min, ends[part], ends[whole])
    for part, whole in reversed(pairs):
        ends[part] = _each(min, ends[part], ends[whole])
    return ends


def _each(choose: Callable[[float, float], float], one: Ends, other: Ends) -> Ends:
    return choose(one[0], other[0]), choose(one[1], other[1])
