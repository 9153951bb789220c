"""How near predictions come to measured runs under DeepSpeed's ZeRO, group by group."""

from __future__ import annotations

import statistics
from functools import cache
from typing import Any

import pytest

from everybyte import estimate
from everybyte.measure.accuracy import Comparison, Wanted, compare
from everybyte.measure.truth import load_records

BARS = (
    ("deepspeed", "static.allocated", 0.01, 0.01),
    ("deepspeed", "peak.allocated", 0.01, 0.01),
    ("deepspeed", "peak.device", 0.05, 0.05),
    ("ms-swift", "peak.reserved", 0.16, 0.17),
    ("qwen-finetune", "peak.reserved", 0.11, 0.45),
)
"""Group, figure, largest median and largest |error|.

What stays open. ms-swift: headers in whole GiB that do not change with the length of the sequences (43 GiB at 16,384 tokens, 44 at 8,192), where the
rows of stage 3 add up to 40 and 37 GB. qwen-finetune: the first Qwen's own modeling code, whose loss at 8,192 tokens takes less than that of
transformers, under which the records are written; its ZeRO-3 runs are within 10 % but for LoRA on 72B (+15 %)."""

SAID = {
    # settings of the scripts that the records name, where the record leaves them out
    "fa-ao-vitg-ds-zero-offload": {"extra": {"overlap_comm": True}},
    "fa-soup-zero2-full": {"buckets": {"reduce": 200_000_000}},
}
"""pytorch/ao benchmarks/benchmark_low_bit_adam.py; Soup src/soup_cli/utils/deepspeed.py."""
LOOSE = {"fa-ao-vitg-ds-zero-offload": 0.15, "fa-soup-zero2-full": 0.11}


def is_sharded(record: dict[str, Any]) -> bool:
    """Whether a record ran under ZeRO."""
    return str(record["job"].get("train", {}).get("sharding", "")).startswith("zero")


@cache
def compared(group: str, figure: str) -> tuple[Comparison, ...]:
    """Predicted and measured figures of a group's ZeRO runs."""
    wanted = Wanted(lambda _: True, lambda name: name == figure)
    records = [r for r in load_records() if r["group"] == group and is_sharded(r)]
    return tuple(found for record in records for found in compare(record, wanted, estimate))


@pytest.mark.parametrize(("group", "figure", "median", "worst"), BARS)
def test_predictions_are_near_the_measured_figures(group: str, figure: str, median: float, worst: float) -> None:
    """All are answered; half and all of them are as near as the bar says."""
    found = compared(group, figure)
    errors = [abs(c.error) for c in found if c.error is not None]
    assert found
    assert len(errors) == len(found)
    assert statistics.median(errors) <= median, [(c.id, c.error) for c in found]
    assert max(errors) <= worst, [(c.id, c.error) for c in found]


@pytest.mark.parametrize("name", SAID)
def test_with_the_settings_of_the_script(name: str) -> None:
    """Runs whose record leaves out sizes that the script sets."""
    record = next(r for r in load_records() if r["id"] == name)
    job = {**record["job"], "train": {**record["job"]["train"], **SAID[name]}}
    (found,) = compare({**record, "job": job}, Wanted(lambda _: True, lambda _: True), estimate)
    assert found.error is not None
    assert abs(found.error) <= LOOSE[name], found.error
