"""How near predictions must come to fine-tuning runs on two to eight GPUs: FSDP1 of the Hugging Face Trainer and of Fabric, FSDP2, DDP."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest

from everybyte import estimate
from everybyte.ledger.answer import Answer
from everybyte.measure.accuracy import Comparison, Wanted, compare, quantile
from everybyte.measure.truth import load_records

OWN_LOSS = "bigcode/gpt_bigcode-santacoder"
"""Its runs used a loss of their own that no source shows, and have no bar for peaks with adapters."""
LITGPT = ("litgpt-full", "litgpt-lora", "litgpt-pretrain")


@dataclass(frozen=True)
class Bar:
    """Which figure of which runs, and what its |error| may be at most."""

    group: str
    figure: str
    median: float
    p90: float
    without: str = ""


BARS = (
    Bar("fms-fsdp", "static.allocated", 0.001, 0.005),
    Bar("fms-fsdp", "peak.allocated", 0.001, 0.01),
    *(Bar(group, "static.allocated", 0.002, 0.012, OWN_LOSS) for group in ("fms-lora", "fms-qlora", "fms-gptq")),
    *(Bar(group, "peak.allocated", 0.004, 0.01, OWN_LOSS) for group in ("fms-lora", "fms-qlora", "fms-gptq")),
    Bar("litgpt", "peak.allocated", 0.025, 0.11),
)
"""LitGPT's LoRA runs were short: later micro-batches did not reach the longest sample, which a long run does. liger-hf (median 9 %: the length of
its batches is not known), torchtune on several GPUs (two runs of 70B, +10 and -10 %) and axolotl-fsdp2
(figures of August 2025 beside the settings of 2026, whose accelerate keeps whole gradients) have no bar yet. accelerate-fsdp2 is the largest of
samples 10 ms apart (benchmarks/fsdp2/measure_utils.py), which misses the moment when the two gradients of its tied table become a third."""


@lru_cache(maxsize=1)
def several() -> tuple[dict[str, Any], ...]:
    """The records of eager runs on several GPUs."""
    records = (r for r in load_records() if ((r["job"].get("hardware") or {}).get("gpus") or 1) > 1 and "train" in r["job"])
    return tuple(r for r in records if not (r["group"] in LITGPT and r["job"]["train"].get("compile")))


@lru_cache(maxsize=256)
def answer(index: int) -> Answer:
    """The answer to a record's job, worked out once."""
    return estimate(several()[index]["job"])


def compared(bar: Bar) -> list[Comparison]:
    """Predicted and measured figures."""
    wanted = Wanted(lambda _: True, lambda figure: figure == bar.figure)
    groups = LITGPT if bar.group == "litgpt" else (bar.group,)
    found: list[Comparison] = []
    for index, record in enumerate(several()):
        if record["group"] in groups and record["job"]["model"] != bar.without:
            found += compare(record, wanted, lambda _, i=index: answer(i))  # type: ignore[misc]
    return found


@pytest.mark.parametrize("bar", BARS, ids=lambda bar: f"{bar.group} {bar.figure}")
def test_bar(bar: Bar) -> None:
    """All are answered; median and 90th percentile of |error| hold."""
    found = compared(bar)
    errors = [abs(c.error) for c in found if c.error is not None]
    worst = sorted((c for c in found if c.error is not None), key=lambda c: -abs(c.error or 0))[:5]
    summary = ", ".join(f"{c.id} {c.error:+.2%}" for c in worst)
    assert len(errors) == len(found) > 0, [(c.id, c.unanswered) for c in found if c.error is None]
    assert quantile(errors, 0.5) <= bar.median, summary
    assert quantile(errors, 0.9) <= bar.p90, summary
