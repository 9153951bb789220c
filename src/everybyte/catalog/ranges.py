"""How far measured runs lie from predictions, by figure and kind of job: the intervals that answers state.

`data/ranges.json` is written by `everybyte.measure.learn` from the measured runs that ship with the package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from os.path import dirname, join
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from everybyte.basics.units import GiB

Ends = tuple[float, float]
"""The ends of an interval, the lower first."""


class Kind(NamedTuple):
    """What decides by whose runs a job is judged."""

    section: str
    """`train` or `serve`."""
    engine: str
    """The framework's or engine's folder; empty for one that no run tells of."""
    several: bool = False
    """Whether several GPUs run it."""
    offloads: bool = False
    """Whether states or weights wait in host memory."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the table, the closest first: `train, several/megatron`, then `train, several`, last `train`."""
        plain = f"{self.section}, several" if self.several else self.section
        whole = f"{plain}, offloaded" if self.offloads else plain
        return f"{whole}/{self.engine}", whole, f"{plain}/{self.engine}", plain, self.section


POOLED = ("kv.pool", "kv.blocks", "kv.tokens", "kv.concurrency")
"""What is left on the device for a cache, and what is counted of it: these take up the errors of all that is subtracted before."""
WITHOUT_UNIT = frozenset({"kv.block_size"})
FIXED = GiB
"""The part of an error that does not grow with the figure (the context of a driver, a workspace) is learnt as a share of this."""
LEAST = 1e-4
"""Of a figure that was always met, as much of it is taken as its scale: an interval of no width then stays one."""


class Spread(NamedTuple):
    """Where measured values of this kind of job lie: 9 of 10 between `low` and `high` scales from the prediction."""

    low: float
    high: float
    runs: int
    groups: int
    scale: Mapping[str, float] = MappingProxyType({"itself": 1.0})
    """Part of the figure -> the share of it that its error is apt to be."""
    is_of_engine: bool = False
    """Learnt most of all from runs of the job's own engine."""

    @property
    def weight(self) -> tuple[bool, int]:
        """Of two that contradict one another, the greater is believed."""
        return self.is_of_engine, self.runs

    def ends(self, figure: str, predicted: float, figures: Mapping[str, float] = MappingProxyType({})) -> Ends:
        """The values between which the measured one is expected 9 times of 10: whole ones (bytes, tokens) but of figures that have a fraction
        (kv.concurrency). The lower end comes first, also of a figure below zero."""
        scale = scale_of(parts_of(figure, predicted, figures), self.scale)
        low, high = predicted + self.low * scale, predicted + self.high * scale
        if predicted >= 0:
            low = max(low, 0)
        return (round(low, 4), round(high, 4)) if isinstance(predicted, float) else (int(low), int(high))


class Held(NamedTuple):
    """Shares of measured values in intervals that were learnt without their source."""

    rows: float
    """Of all values."""
    sources: float
    """Mean of the shares of the sources."""


def parts_of(figure: str, predicted: float, figures: Mapping[str, float]) -> dict[str, float]:
    """What an error of a figure can come from, in the unit of the figure: itself, a fixed amount, and of a cache also what is subtracted before it."""
    if figure in WITHOUT_UNIT:
        return {"itself": abs(predicted)}
    if figure not in POOLED:
        return {"itself": abs(predicted), "fixed": FIXED}
    byte = abs(predicted / figures["kv.pool"]) if figures.get("kv.pool") else 0.0
    return {"itself": abs(predicted), "fixed": byte * FIXED, **{name: byte * figures.get(name, 0) for name in ("weights", "activation_peak")}}


def scale_of(parts: Mapping[str, float], shares: Mapping[str, float]) -> float:
    """How large an error of a figure is apt to be: of each part a share, and never nothing."""
    return sum(share * parts.get(name, 0.0) for name, share in shares.items()) + LEAST * max(parts["itself"], 1.0)


@cache
def _table() -> dict[str, Any]:
    with open(join(dirname(__file__), "data", "ranges.json"), "rb") as file:  # pathlib takes milliseconds to import
        return msgspec.json.decode(file.read(), type=dict[str, Any])


@cache
def spread(figure: str, kind: Kind) -> Spread | None:
    """The spread of a figure for a kind of job, or None where no measured run tells."""
    entry = _table().get(kind.section, {}).get(figure)
    if entry is None:
        return None
    found = next(key for key in kind.keys if key in entry["kinds"])
    return Spread(**entry["kinds"][found], scale=entry["scale"], is_of_engine="/" in found)


def known(section: str) -> dict[str, Held]:
    """The figures of `train` or `serve` that have intervals: how many measured values these hold when they are learnt without their source."""
    return {figure: Held(**entry["held"]) for figure, entry in _table()[section].items()}


PARTS: tuple[tuple[str, str], ...] = (
    ("static.allocated", "peak.allocated"),
    ("peak.allocated", "peak.reserved"),
    ("weights", "peak.device"),
    ("kv.pool", "peak.device"),
    ("peak.allocated", "peak.device"),
    ("peak.reserved", "peak.device"),
)
"""(part, whole), the inner ones first: a run never measures more of the first than of the second."""


def intervals(figures: Mapping[str, float], kind: Kind) -> dict[str, Ends]:
    """The interval of each figure for which measured runs tell one. No two contradict one another: see PARTS and `_of_pages`."""
    spreads = {name: found for name in figures if (found := spread(name, kind)) is not None}
    ends = {name: found.ends(name, figures[name], figures) for name, found in spreads.items()}
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
