"""Answers for fine-tuning runs on one GPU against public measurements, group by group."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from everybyte import estimate
from everybyte.measure.accuracy import Comparison, Wanted, compare, quantile
from everybyte.measure.truth import load_records

ALL = Wanted(lambda _: True, lambda _: True)


@cache
def errors(group: str, figure: str, change: Callable[[dict[str, Any]], dict[str, Any]] = lambda job: job) -> tuple[tuple[float, ...], int]:
    """Absolute errors of a group's runs on one GPU, and how many were asked. `change` adds what a record says in words alone."""
    records = [r for r in load_records() if r["group"] == group and r["job"]["hardware"].get("gpus") == 1]
    rows: list[Comparison] = [c for r in records for c in compare({**r, "job": change(r["job"])}, ALL, estimate) if c.figure == figure]
    return tuple(abs(c.error) for c in rows if c.error is not None), len(rows)


def test_vramcalc() -> None:
    """Plain loops and forward passes of vramcalc's bench: mean within 1.2 %, worst within 3.5 %."""
    found, asked = errors("vramcalc", "peak.allocated")
    assert len(found) == asked == 14
    assert statistics.fmean(found) <= 0.012
    assert max(found) <= 0.035


@pytest.mark.parametrize(
    ("group", "figure", "median", "p90"),
    [
        ("torchtune", "peak.allocated", 0.04, 0.12),
        ("t4-qlora", "peak.allocated", 0.01, 0.02),
        ("llamafactory-long", "peak.device", 0.04, 0.06),
        ("vit-lowbit-optim", "peak.allocated", 0.04, 0.06),
        ("lowrank-block-optim", "peak.device", 0.06, 0.12),
        ("galore", "peak.device", 0.05, 0.05),
        ("axolotl", "peak.reserved", 0.12, 0.30),
    ],
)
def test_group(group: str, figure: str, median: float, p90: float) -> None:
    """Median and 90th percentile of what is answered."""
    found, _ = errors(group, figure)
    assert found
    assert quantile(found, 0.5) <= median
    assert quantile(found, 0.9) <= p90


def emptied(job: dict[str, Any]) -> dict[str, Any]:
    """The loop of peft's comparison empties the cache between batches of different lengths (method_comparison/MetaMathQA/run.py)."""
    train = job["train"]
    return {**job, "train": {**train, "extra": {**train.get("extra", {}), "empty_cache": True}}}


def test_every_kind_of_adapter_of_peft() -> None:
    """21 runs with 17 kinds of adapters: reserved within 7 % in the median as the records stand, within 1.5 % with the loop's emptied cache;
    what is left of the latter is OSF of another release and full fine-tuning."""
    found, asked = errors("peft-metamath", "peak.reserved", emptied)
    assert len(found) == asked == 21
    assert quantile(found, 0.5) <= 0.015
    assert quantile(found, 0.9) <= 0.065
    stated, _ = errors("peft-metamath", "peak.reserved")
    assert quantile(stated, 0.5) <= 0.07
