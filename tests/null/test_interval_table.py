"""Intervals of figures follow the learnt table: the job's own engine first, then all jobs of its kind."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte.catalog import ranges

ALL = {"low": 0.9, "high": 1.2, "runs": 100, "groups": 20}
OWN = {"low": 0.98, "high": 1.01, "runs": 10, "groups": 3}
TABLE: dict[str, Any] = {
    "peak.allocated": {"train": ALL, "train/litgpt": OWN, "train, several": {**ALL, "low": 0.5}},
    "kv.concurrency": {"serve": {**ALL, "low": 0.5}},
}


@pytest.mark.parametrize(
    ("section", "engine", "several", "figures", "expected"),
    [
        ("train", "litgpt", False, {"peak.allocated": 1000}, {"peak.allocated": (980, 1010)}),
        ("train", "pytorch", False, {"peak.allocated": 1000}, {"peak.allocated": (900, 1200)}),
        ("train", "litgpt", True, {"peak.allocated": 1000}, {"peak.allocated": (500, 1200)}),
        ("serve", "vllm", False, {"kv.concurrency": 3.0, "kv.pool": 5}, {"kv.concurrency": (1.5, 3.6)}),
    ],
)
def test_an_interval_is_the_figure_times_the_table(
    monkeypatch: pytest.MonkeyPatch, section: str, engine: str, several: bool, figures: dict[str, float], expected: dict[str, Any]
) -> None:
    """Ends are the learnt ratios times the figure, whole bytes or a fraction as the figure is; a figure that no run tells of has none."""
    monkeypatch.setattr(ranges, "_table", lambda: TABLE)
    assert ranges.intervals(figures, section, engine, several) == expected
