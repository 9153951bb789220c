"""How near SGLang's pools come to those of measured starts, one rule at a time: what the same log states is fed in."""

from __future__ import annotations

import statistics
from functools import lru_cache
from typing import Any

import pytest

from everybyte import estimate
from everybyte.basics.errors import BadInput
from everybyte.measure.accuracy import quantile
from everybyte.measure.truth import load_records

COUNTS = frozenset({"kv.tokens", "kv.blocks", "kv.concurrency"})
"""Derived from the same pool: they do not give each other away, nor the pool."""
OPEN = {
    "infer609/sglang/I0482": "an unnamed NPU: its driver's share and the quantisation of its attention are not known",
    "infer609/sglang/I0497": "twice the experts' bytes would explain it: ROCm's shuffled copy, of a start that failed",
    "infer609/sglang/I0475": "slots of states on an XPU: its prefix cache is off without the job saying so",
    "freshb/sglang/S03": "memory fraction not stated, memory shared with the CPU",
    "freshb/sglang/S09": "memory fraction not stated, an NPU of an unnamed kind, and the config lacks Grok 2's dense branch",
    "infer609/sglang/I0264": "what is free before loading is not stated: communicators of four ranks",
}
"""Records whose pool or weights stay open, and why; their tokens are asked nevertheless."""


@lru_cache(maxsize=2)
def records(*, later: bool) -> tuple[dict[str, Any], ...]:
    """The measured starts of SGLang: those that were there when its rules were read, or those that came `later`."""
    return tuple(record for record in load_records() if record["group"] == "sglang" and record["id"].startswith("fresh/") == later)


def errors(figure: str, without: frozenset[str] = frozenset(), *, later: bool = False) -> tuple[list[tuple[float, str]], int]:
    """(|error| and id of each answered record, number of records) of a figure, with the other stated figures given."""
    found, asked = [], 0
    for record in records(later=later):
        measured = next((m["value"] for m in record["measured"] if m["figure"] == figure), None)
        if measured is None or record["id"] in without:
            continue
        asked += 1
        hidden = {figure} | (COUNTS if figure in COUNTS or figure == "kv.pool" else set())
        given = {key: value for key, value in (record.get("given") or {}).items() if key not in hidden}
        try:
            value = estimate({**record["job"], "given": given}).figures.get(figure)
        except BadInput:
            continue
        if value is not None:
            found.append((abs(value / measured - 1), record["id"]))
    return sorted(found), asked


@pytest.mark.parametrize(
    ("figure", "median", "p90", "answered", "without"),
    [
        ("kv.tokens", 0.001, 0.003, 0.8, frozenset()),
        ("kv.pool", 0.005, 0.008, 0.6, frozenset(OPEN)),
        ("kv.swa_bytes", 0.001, 0.001, 1.0, frozenset()),
        ("weights", 0.025, 0.09, 0.8, frozenset(OPEN)),
    ],
)
def test_bar(figure: str, median: float, p90: float, answered: float, without: frozenset[str]) -> None:
    """Median and 90th percentile of the error, and the share that is answered."""
    found, asked = errors(figure, without)
    sizes = [error for error, _ in found]
    assert len(found) >= answered * asked
    assert statistics.median(sizes) <= median, found
    assert quantile(sizes, 0.9) <= p90, found


@pytest.mark.parametrize(("figure", "median", "worst"), [("kv.tokens", 0.003, 0.028), ("kv.pool", 0.021, 0.76), ("weights", 0.045, 0.125)])
def test_later_starts(figure: str, median: float, worst: float) -> None:
    """Five starts that came after the rules: all are answered, and their errors are no larger than what was reached when they came."""
    found, asked = errors(figure, later=True)
    assert len(found) == asked
    assert statistics.median(error for error, _ in found) <= median, found
    assert found[-1][0] <= worst, found


@pytest.mark.parametrize("group", ["trtllm", "other"])
def test_other_engines_are_answered(group: str) -> None:
    """Every record of TensorRT-LLM, ExLlama and MLX has an answer for each figure, and sizes of weights are near."""
    for record in load_records():
        if record["group"] != group:
            continue
        figures = estimate(record["job"]).figures
        for measured in record["measured"]:
            assert measured["figure"] in figures, record["id"]
            if measured["figure"] == "weights":
                assert figures["weights"] == pytest.approx(measured["value"], rel=0.1), record["id"]
