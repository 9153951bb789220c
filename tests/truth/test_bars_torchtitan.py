"""How near predictions must come to measured runs under FSDP2: torchtitan and prime-rl by reserved bytes, NeMo Automodel by allocated ones, xtuner by both."""

from __future__ import annotations

import re
import statistics
from functools import lru_cache
from typing import Any

import pytest

from everybyte import estimate
from everybyte.ledger.answer import Answer
from everybyte.measure.accuracy import Comparison, Wanted, compare, quantile
from everybyte.measure.truth import load_records

BARS = (
    ("titan-(?!elsewhere).*", "peak.reserved", 0.04, 0.11),
    ("prime-rl-.*", "peak.reserved", 0.03, 0.06),
    ("nemo-automodel", "peak.allocated", 0.005, 0.005),
    ("xtuner", "peak.allocated", 0.01, 0.01),
    ("xtuner", "peak.reserved", 0.05, 0.05),
)
"""Pattern of groups, figure, largest median and largest 90th percentile of |error|. What is open of torchtitan: mixtures of experts whose routing is
uneven (-26 %), several samples under tensor parallelism with sequence parallelism (-9 to -11 %), blocks under NVFP4 (-11 %), and the tutorial of June 2025
(titan-elsewhere, +22 %: its states would have to cost half of what they hold; runs of other dates are met)."""
ANSWERED = 0.9


def predict(job: dict[str, Any]) -> Answer:
    """Our answer to the job of a record."""
    return estimate(job)


@lru_cache(maxsize=4)
def compared(pattern: str, figure: str) -> tuple[Comparison, ...]:
    """Predicted and measured figures."""
    wanted = Wanted(lambda _: True, lambda name: name == figure)
    records = [r for r in load_records() if re.fullmatch(pattern, r["group"])]
    return tuple(found for record in records for found in compare(record, wanted, predict))


@pytest.mark.parametrize(("pattern", "figure", "median", "p90"), BARS)
def test_predictions_are_near_the_measured_figures(pattern: str, figure: str, median: float, p90: float) -> None:
    """At least nine of ten are answered, and half and nine tenths of them are as near as the bar says."""
    found = compared(pattern, figure)
    errors = [abs(c.error) for c in found if c.error is not None]
    worst = sorted((c for c in found if c.error is not None), key=lambda c: -abs(c.error or 0))[:6]
    message = ", ".join(f"{c.id} {c.error:+.1%}" for c in worst)
    assert len(errors) >= ANSWERED * len(found), message
    assert statistics.median(errors) <= median, message
    assert quantile(errors, 0.9) <= p90, message
