"""LitGPT's published memory figures on one GPU (max_memory_allocated / 1e9, rounded to 0.01 GB)."""

from __future__ import annotations

from functools import lru_cache
from statistics import median
from typing import Any

import pytest

from everybyte import estimate
from everybyte.basics.errors import BadInput
from everybyte.measure.truth import load_records

GROUPS = ("litgpt-lora", "litgpt-qlora", "litgpt-adapter", "litgpt-full", "litgpt-pretrain")


@lru_cache(maxsize=1)
def records() -> list[dict[str, Any]]:
    """The records on one GPU."""
    return [r for r in load_records() if r["group"] in GROUPS and r["job"]["hardware"]["gpus"] == 1]


@lru_cache(maxsize=1)
def errors() -> dict[str, list[float]]:
    """Group -> |predicted / measured - 1| of its answered records."""
    found: dict[str, list[float]] = {group: [] for group in GROUPS}
    for record in records():
        try:
            figures = estimate(record["job"]).figures
        except BadInput:
            continue
        found[record["group"]] += [abs(figures[m["figure"]] / m["value"] - 1) for m in record["measured"]]
    return found


@pytest.mark.parametrize("group", GROUPS)
def test_errors_of_a_group(group: str) -> None:
    """Median at most 1 %, 90th percentile at most 2 % (asked for are 3 % and 10 %)."""
    group_errors = sorted(errors()[group])
    assert median(group_errors) <= 0.01
    assert group_errors[int(0.9 * (len(group_errors) - 1) + 0.5)] <= 0.02


def test_most_records_are_answered() -> None:
    """At least 90 %; compiled runs are refused."""
    assert sum(map(len, errors().values())) >= 0.9 * len(records())
