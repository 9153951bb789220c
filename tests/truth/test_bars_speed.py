"""Measured speed of training and serving against the clock: errors by kind, ranking, and that the stated interval holds."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "speed_rows.py"

BARS = {
    ("step.time_s", "train dense"): (0.08, 0.24),
    ("decode.tokens_per_s", "serve dense alone"): (0.10, 0.28),
    ("decode.tokens_per_s", "serve dense load"): (0.10, 0.28),
    ("decode.tokens_per_s", "serve moe load"): (0.20, 0.60),
    ("prefill.tokens_per_s", "serve dense alone"): (0.25, 0.60),
}
"""Figure and kind -> the most that median and 90th percentile may be."""

OPEN = {("step.time_s", "train moe"): (0.14, 0.40), ("ttft_s", "serve dense load"): (0.45, 1.8), ("ttft_s", "serve moe load"): (0.45, 0.9)}
"""What is asked for and not reached: experts of Megatron-Bridge before 26.06, and the time that requests wait in a server."""


@cache
def script() -> ModuleType:
    """The script that reads the rows."""
    spec = importlib.util.spec_from_file_location("speed_rows", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["speed_rows"] = module
    spec.loader.exec_module(module)
    return module


@cache
def rows() -> list[object]:
    """All rows that are answered."""
    return list(script().found())


@pytest.mark.parametrize("kind", BARS, ids=lambda kind: f"{kind[0]} {kind[1]}")
def test_errors(kind: tuple[str, str]) -> None:
    """Median and 90th percentile of |predicted / measured - 1| of the time stay below what is promised."""
    median, ninth = script().errors(script().kinds(rows())[kind])
    assert median <= BARS[kind][0]
    assert ninth <= BARS[kind][1]


@pytest.mark.xfail(reason="experts of Megatron-Bridge before 26.06 run 20 % slower than counted; a request's wait in a server is not modelled", strict=False)
@pytest.mark.parametrize("kind", OPEN, ids=lambda kind: f"{kind[0]} {kind[1]}")
def test_open_errors(kind: tuple[str, str]) -> None:
    """What is promised and not reached yet."""
    median, _ = script().errors(script().kinds(rows())[kind])
    assert median <= OPEN[kind][0]


def test_complete_rows() -> None:
    """Training rows whose settings are all known: median at most 5.5 %, 90th percentile 20 %."""
    complete = [row for row in rows() if row.figure == "step.time_s" and row.completeness == "A" and not row.group.startswith("golden")]  # type: ignore[attr-defined]
    median, ninth = script().errors(complete)
    assert median <= 0.055
    assert ninth <= 0.20


def test_ranking() -> None:
    """Runs of one model, card, count and source are ranked as measured: Kendall's tau of at least 0.9."""
    training = [row for row in rows() if row.figure == "step.time_s" and not row.group.startswith("golden")]  # type: ignore[attr-defined]
    tau, pairs = script().kendall(training)
    assert pairs > 400
    assert tau >= 0.9
