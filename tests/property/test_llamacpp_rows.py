"""llama.cpp: rows that a reader can work out, sums that are the figures, buffers that grow with what they hold."""

from __future__ import annotations

from typing import Any

import pytest
from arithmetic_of_rows import calculate
from hypothesis import given, settings
from hypothesis import strategies as st

from everybyte import estimate

MODELS = ("meta-llama/Llama-3.2-1B", "Qwen/Qwen3.5-27B", "google/gemma-3-1b-it", "deepseek-ai/DeepSeek-V2-Lite", "state-spaces/mamba-1.4b-hf")


def job(model: str, gpus: int, **serve: Any) -> dict[str, Any]:
    """A job of llama.cpp."""
    hardware = {"gpu": "rtx-4090", "gpus": gpus} if gpus else {"gpus": 0}
    return {"model": model, "hardware": hardware, "serve": {"engine": "llama.cpp", "weights": "q4_k_m", **serve}}


@settings(max_examples=25, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    gpus=st.integers(0, 3),
    context=st.integers(256, 40000),
    ubatch=st.sampled_from((32, 512, 1000)),
    slots=st.integers(1, 5),
    layers=st.integers(0, 30),
    flash=st.booleans(),
    unified=st.booleans(),
)
def test_rows(model: str, gpus: int, context: int, ubatch: int, slots: int, layers: int, flash: bool, unified: bool) -> None:
    """Each formula gives its bytes; the caches on all devices together are the figures."""
    found = estimate(
        job(model, gpus, context=context, ubatch=ubatch, parallel_slots=slots, gpu_layers=layers, attention="flash" if flash else "eager", unified_kv=unified)
    )
    rows = [row for rank in found.ranks for row in rank.ledger]
    for row in rows:
        assert calculate(row.formula, row.symbols) == row.bytes, row.id
    on_gpus = sum(row.bytes for row in rows if row.category in ("kv_cache", "state"))
    on_host = sum(size for name, size in (found.host or {}).items() if name.startswith(("kv_cache", "state")))
    total = found.figures["kv.bytes"] + found.figures.get("state.bytes", 0)
    assert on_gpus + (on_host if gpus else 0) == total


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("release", ["b4000", "b5300", "b6200", "b8000", "b10000", "b11434"])
def test_every_build_has_rules(model: str, release: str) -> None:
    """A longer context and a larger batch together never need less, whatever the build. (Best fit leaves holes: either alone may.)"""
    sizes = [
        estimate(job(model, 1, version=release, context=context, ubatch=ubatch, parallel_slots=1)).figures["compute_buffer"]
        for context, ubatch in ((2048, 256), (8192, 256), (8192, 512))
    ]
    assert max(sizes) == sizes[-1]
