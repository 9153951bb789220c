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
    """The records on one GPU that run eagerly."""
    return [r for r in load_records() if r["group"] in GROUPS and r["job"]["hardware"]["gpus"] == 1 and not r["job"]["train"].get("compile")]


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
    """At least 90 %."""
    assert sum(map(len, errors().values())) >= 0.9 * len(records())


def test_compiled_runs() -> None:
    """Thunder's benchmark under torch.compile on eight GPUs: blocks alone differ by less than 1 % from one depth to the next, and the median error is
    within 4 %."""
    found = [(r["job"], r["measured"][0]["value"]) for r in load_records() if r["group"] == "thunder-litgpt" and r["job"]["train"]["compile"]]
    predicted = [estimate(job).figures["peak.allocated"] for job, _ in found]
    assert median(abs(ours / value - 1) for ours, (_, value) in zip(predicted, found, strict=True)) <= 0.04
    depths = [
        (job["model"]["config"]["num_hidden_layers"], ours, value) for (job, value), ours in zip(found, predicted, strict=True) if "layers zero3" in job["name"]
    ]
    (_, low, real_low), *_, (_, high, real_high) = sorted(depths)
    assert abs((high - low) / (real_high - real_low) - 1) <= 0.01
