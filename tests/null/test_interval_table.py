"""Intervals of figures follow the learnt table: the job's own engine first, then all jobs of its kind."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte.basics.units import GiB
from everybyte.catalog import ranges
from everybyte.catalog.ranges import LEAST, Kind

ALL = {"low": -1.0, "high": 2.0, "runs": 100, "groups": 20}
OWN = {"low": -0.2, "high": 0.1, "runs": 10, "groups": 3}
TABLE: dict[str, Any] = {
    "train": {
        "peak.allocated": {"scale": {"itself": 0.1}, "held": 0.9, "kinds": {"train": ALL, "train/litgpt": OWN, "train, several": {**ALL, "low": -5.0}}},
        "peak.device": {"scale": {"fixed": 0.5}, "held": 0.9, "kinds": {"train": ALL}},
    },
    "serve": {
        "kv.concurrency": {"scale": {"weights": 0.01}, "held": 0.9, "kinds": {"serve": ALL}},
        "kv.pool": {"scale": {"weights": 0.01}, "held": 0.9, "kinds": {"serve": ALL}},
    },
}


@pytest.fixture
def _small_table(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(ranges, "_table", lambda: TABLE)
    ranges.spread.cache_clear()
    yield
    ranges.spread.cache_clear()


@pytest.mark.usefixtures("_small_table")
@pytest.mark.parametrize(
    ("section", "engine", "several", "figures", "expected"),
    [
        ("train", "litgpt", False, {"peak.allocated": 10**6}, {"peak.allocated": (10**6 - 20_000, 10**6 + 10_000)}),
        ("train", "pytorch", False, {"peak.allocated": 10**6}, {"peak.allocated": (10**6 - 100_000, 10**6 + 200_000)}),
        ("train", "litgpt", True, {"peak.allocated": 10**6}, {"peak.allocated": (10**6 - 500_000, 10**6 + 200_000)}),
        ("train", "pytorch", True, {"peak.device": 8 * GiB}, {"peak.device": (7.5 * GiB, 9 * GiB)}),
        (
            "serve",
            "vllm",
            False,
            {"kv.pool": 10 * GiB, "kv.concurrency": 3.0, "weights": 100 * GiB},
            {"kv.pool": (9 * GiB, 12 * GiB), "kv.concurrency": (2.7, 3.6)},
        ),
        ("serve", "vllm", False, {"weights": 5}, {}),
    ],
)
def test_an_interval_lies_so_many_scales_about_the_figure(
    section: str, engine: str, several: bool, figures: dict[str, float], expected: dict[str, Any]
) -> None:
    """Ends are the figure and so many scales; a scale is a share of the figure, of a fixed amount, or of what is subtracted before the cache. A figure
    that no run tells of has none."""
    found = ranges.intervals(figures, Kind(section, engine, several))
    assert found.keys() == expected.keys()
    for name, ends in expected.items():
        assert found[name] == pytest.approx(ends, abs=LEAST * 5 * figures[name])


@pytest.mark.usefixtures("_small_table")
def test_a_larger_job_is_known_better_where_errors_are_fixed() -> None:
    """The context of a driver is as large for 8 GiB as for 80: its error weighs a tenth of it there."""
    small, large = (ranges.intervals({"peak.device": size * GiB}, Kind("train", "pytorch"))["peak.device"] for size in (8, 80))
    assert (large[1] - large[0]) / 80 < (small[1] - small[0]) / 8 / 9
