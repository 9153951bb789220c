"""How near predictions must come to the other baselines of Megatron-LM's tests: BERT, hybrid models, Megatron-FSDP in fp8, and ms-swift's scripts."""

from __future__ import annotations

import pytest
from test_bars_megatron import ANSWERED, PEAK, STATIC, Bar, comparisons

from everybyte.measure.accuracy import quantile

BARS = (
    Bar("megatron-bert", STATIC, 0.006, 0.02),
    Bar("megatron-bert", PEAK, 0.02, 0.04),
    Bar("megatron-hybrid", STATIC, 0.01, 0.02),
    # routing grew the peak of one of the two by 11 % after the second step, where the balanced figure is met within 1 %
    Bar("megatron-hybrid", PEAK, 0.06, 0.11),
    Bar("megatron-deepseek-proxy", STATIC, 0.06, 0.08),
    Bar("megatron-deepseek-proxy", PEAK, 0.02, 0.02),
)


@pytest.mark.parametrize("bar", BARS, ids=lambda bar: f"{bar.group} {bar.figure}")
def test_bar(bar: Bar) -> None:
    """Median and 90th percentile of |error| hold, and nine of ten figures are answered."""
    found = comparisons(bar)
    sizes = [abs(c.error) for c in found if c.error is not None]
    worst = ", ".join(f"{c.id} {c.error:+.2%}" for c in sorted(found, key=lambda c: -abs(c.error or 0))[:5])
    assert sizes
    assert quantile(sizes, 0.5) <= bar.median, worst
    assert quantile(sizes, 0.9) <= bar.p90, worst
    assert len(sizes) >= ANSWERED * len(found), [(c.id, c.unanswered) for c in found if c.error is None]
