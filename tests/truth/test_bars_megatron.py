"""How near predictions must come to Megatron-LM's own test baselines and to NeMo's tables: bytes of the last pipeline stage."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import pytest

from everybyte import estimate
from everybyte.measure.accuracy import Comparison, Wanted, compare, quantile
from everybyte.measure.truth import load_records

ANSWERED = 0.9
"""Share of the figures that must be answered."""


class Bar(NamedTuple):
    """What |error| of a figure of one kind of run may be at most."""

    group: str
    figure: str
    median: float
    p90: float


STATIC, PEAK = "static.allocated", "peak.allocated"
BARS = (
    *(Bar(f"megatron-{kind}", STATIC, 0.006, 0.02) for kind in ("gpt-small", "7b", "15b")),
    Bar("megatron-moe-small", STATIC, 0.005, 0.012),
    *(Bar(f"megatron-{kind}", PEAK, 0.005, 0.02) for kind in ("gpt-small", "7b", "15b")),
    Bar("megatron-moe-small", PEAK, 0.014, 0.042),
    Bar("megatron-mixtral", PEAK, 0.015, 0.05),
    Bar("nemo-bridge", PEAK, 0.035, 0.10),
)


@lru_cache(maxsize=256)
def answer(name: str) -> Any:
    """The answer to a record's job, worked out once."""
    return estimate(next(r for r in load_records() if r["id"] == name)["job"])


def comparisons(bar: Bar) -> list[Comparison]:
    """Predicted and measured figures of a bar."""
    wanted = Wanted(lambda group: group == bar.group, lambda figure: figure == bar.figure)
    records = [r for r in load_records() if r["group"] == bar.group and any(m["figure"] == bar.figure for m in r["measured"])]
    return [c for r in records for c in compare(r, wanted, lambda _, name=r["id"]: answer(name))]  # type: ignore[misc]


def holds(bar: Bar) -> None:
    """Asserts what the bar says, and that nine of ten figures are answered."""
    found = comparisons(bar)
    sizes = [abs(c.error) for c in found if c.error is not None]
    worst = ", ".join(f"{c.id} {c.error:+.2%}" for c in sorted(found, key=lambda c: -abs(c.error or 0))[:5])
    assert sizes
    assert quantile(sizes, 0.5) <= bar.median, worst
    assert quantile(sizes, 0.9) <= bar.p90, worst
    assert len(sizes) >= ANSWERED * len(found), [(c.id, c.unanswered) for c in found if c.error is None]


@pytest.mark.parametrize("bar", BARS, ids=lambda bar: f"{bar.group} {bar.figure}")
def test_bar(bar: Bar) -> None:
    """Median and 90th percentile of |error| hold, and nine of ten figures are answered."""
    holds(bar)
