"""The code that runs the measured jobs, small, on the CPU: it trains and generates, and keeps what is predicted."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "gpu"))

from dry_run import check
from jobs import JOBS

SOME = (
    "full-amp",
    "full-bf16-eager",
    "recompute-reentrant",
    "step-zeroed",
    "lora-bf16",
    "frozen-but-head",
    "vocabulary-qwen",
    "family-gemma-3",
    "family-gpt-2",
    "family-vit",
    "cnn-amp",
    "moe-bf16",
    "generate-windows",
    "prefill-cached",
)
"""One of each kind; `tests/gpu/measure.py --dry-run` checks all."""
TRACED_ELSEWHERE = {"full-amp", "recompute-reentrant", "lora-bf16", "moe-bf16", "generate-windows"}
"""tests/trace/test_against.py compares every event of these with their traces."""


@pytest.mark.parametrize("name", SOME)
def test_the_small_twin_keeps_what_is_predicted(name: str) -> None:
    """Forward, backward and step run; bytes kept for backward, or the cache, equal the prediction."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check(next(m for m in JOBS if m.name == name), traces=name not in TRACED_ELSEWHERE)
    assert found.ok, found.text
