"""How far measured runs lie from predictions, by figure and kind of job: the intervals that answers state.

`data/ranges.json` is written by `everybyte.measure.learn` from the measured runs that ship with the package.
"""

from __future__ import annotations

from functools import cache
from os.path import dirname, join
from typing import Any, NamedTuple

import msgspec


class Spread(NamedTuple):
    """Measured over predicted: 9 of 10 measured runs of this kind lie between `low` and `high`."""

    low: float
    high: float
    runs: int
    groups: int


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
            return Spread(**rows[kind])
    return None


def interval(predicted: float, figure: str, section: str, engine: str, several: bool = False) -> tuple[float, float] | None:
    """The values between which the measured one is expected 9 times of 10: whole ones (bytes, tokens) but of figures that have a fraction (kv.concurrency)."""
    found = spread(figure, section, engine, several)
    if found is None:
        return None
    ends = predicted * found.low, predicted * found.high
    return (round(ends[0], 4), round(ends[1], 4)) if isinstance(predicted, float) else (int(ends[0]), int(ends[1]))
