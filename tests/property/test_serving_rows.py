"""Rows of servers: the formula of every row, with its numbers put in, gives its bytes; phases are the sums of their rows."""

from __future__ import annotations

from typing import Any

import pytest
from arithmetic_of_rows import calculate

from everybyte import estimate

MODELS = (
    "meta-llama/Meta-Llama-3.1-8B",
    "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V3",
    "openai/gpt-oss-20b",
    "Qwen/Qwen3.5-27B",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "google/gemma-3-12b-it",
)
ENGINES = ("sglang", "tensorrt-llm", "tgi", "lmdeploy", "exllama", "mlx")
SETTINGS: dict[str, dict[str, Any]] = {
    "exllama": {"weights": {"format": "exl3", "bits": 4.25}, "kv_dtype": {"k": "q6", "v": "q4"}},
    "mlx": {"weights": {"format": "int4"}},
    "sglang": {"lora": {"rank": 16, "count": 2}, "draft": {"method": "mtp", "tokens": 3}},
}


def served(engine: str, model: str, tp: int = 1) -> dict[str, Any]:
    mesh = {"mesh": {"tp": tp}} if tp > 1 else {}
    return {"model": model, "hardware": {"gpu": "h200", "gpus": tp}, "serve": {"engine": engine, "context": 4096, **SETTINGS.get(engine, {}), **mesh}}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("engine", ENGINES)
def test_formulas_give_the_bytes(engine: str, model: str) -> None:
    """A reader with a pocket calculator gets the same number."""
    for entry in estimate(served(engine, model)).worst.ledger:
        assert calculate(entry.formula, entry.symbols) == entry.bytes, entry.id


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm", "tgi", "lmdeploy"])
def test_formulas_of_ranks(engine: str) -> None:
    """What a rank holds of each tensor is written with the sizes that it has."""
    for entry in estimate(served(engine, "Qwen/Qwen3-30B-A3B", 4)).worst.ledger:
        assert calculate(entry.formula, entry.symbols) == entry.bytes, entry.id


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("engine", ENGINES)
def test_ranges_hold_the_rows(engine: str, model: str) -> None:
    """Where a row has a range, its bytes lie in it."""
    for entry in estimate(served(engine, model)).worst.ledger:
        assert (entry.low or 0) <= entry.bytes <= (entry.high if entry.high is not None else entry.bytes), entry.id
