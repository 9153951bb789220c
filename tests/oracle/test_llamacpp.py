"""llama.cpp itself, run over header-only models (record_llamacpp.py): caches, recurrent states, output and compute buffers of its log.

data/llamacpp.csv holds what the engine printed; the engine is not needed to run this."""

from __future__ import annotations

import csv
import json
import statistics
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from everybyte.estimator import accounted
from everybyte.job import read_job

DATA = Path(__file__).parent / "data"
MODELS: dict[str, Any] = json.loads((DATA / "llamacpp_models.json").read_text())
BUILD = "b11434"
MIB = 1 << 20
PRINTED = 0.0051
"""Half of the printed 0.01 MiB, and the rounding of the printing itself."""
POINTS = 400
"""At least so many contexts were opened."""


@cache
def contexts() -> dict[str, list[dict[str, str]]]:
    """The rows of the table by model."""
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    with (DATA / "llamacpp.csv").open(newline="") as table:
        for row in csv.DictReader(table):
            found[row["model"]].append(row)
    return found


def spelt(kind: str) -> str:
    """ggml's f16 as job files write it."""
    return "fp16" if kind == "f16" else kind


def job(row: dict[str, str]) -> dict[str, Any]:
    """The job of one context: n_ctx is what all sequences have together."""
    sequences, unified = int(row["sequences"]), row["unified"] == "1" or row["sequences"] == "1"
    return {
        "model": {"config": MODELS[row["model"]]["config"]},
        "hardware": {"gpus": 0},
        "serve": {
            "engine": "llama.cpp",
            "version": BUILD,
            "weights": "q8_0",
            "context": int(row["ctx"]) // (1 if unified else sequences),
            "batched_tokens": int(row["batch"]),
            "ubatch": int(row["ubatch"]),
            "parallel_slots": sequences,
            "unified_kv": unified,
            "attention": "flash" if row["flash"] == "1" else "eager",
            "kv_dtype": {"k": spelt(row["key"]), "v": spelt(row["value"])},
            "swa_full": row["swa_full"] == "1",
            "extra": {"n_outputs": int(row["outputs"]) or int(row["batch"])},
        },
    }


@cache
def answers(model: str) -> list[tuple[dict[str, str], dict[str, int]]]:
    """Each context of a model with our figures, and the output buffer."""
    found = []
    for row in contexts()[model]:
        account = accounted(read_job(job(row)))[2]
        output = next(line.bytes for line in account.ranks[0].host if line.id == "output buffer")
        found.append((row, {**account.figures, "output": output}))
    return found


def test_the_grid_is_large() -> None:
    """The engine opened contexts of every kind of model: dense, experts, windows, latent attention, recurrent, hybrid."""
    assert sum(map(len, contexts().values())) >= POINTS
    assert set(contexts()) == set(MODELS)


@pytest.mark.parametrize("model", MODELS)
def test_caches_to_the_printed_digit(model: str) -> None:
    """Keys and values, windows, recurrent states and the output buffer are what the engine prints."""
    for row, figures in answers(model):
        windows = figures.get("kv.swa_bytes", 0)
        ours = {
            "cache_mib": figures["kv.bytes"] - windows,
            "window_mib": windows,
            "state_mib": figures.get("state.bytes", 0),
            "output_mib": figures["output"],
        }
        for name, size in ours.items():
            if row[name]:
                assert size / MIB == pytest.approx(float(row[name]), abs=PRINTED), (name, row)


@pytest.mark.parametrize("model", MODELS)
def test_compute_buffers(model: str) -> None:
    """The replayed planner needs the bytes that ggml's needs: half of them to 0.01 %, all within 2 % (one hole more or less in hybrids with experts)."""
    errors = [abs(figures["compute_buffer"] / MIB - float(row["compute_mib"])) / float(row["compute_mib"]) for row, figures in answers(model)]
    assert statistics.median(errors) <= 0.0001
    assert max(errors) <= 0.02


def test_compute_buffers_equal_the_print() -> None:
    """Nearly all are equal to the printed 0.01 MiB."""
    equal = [abs(figures["compute_buffer"] / MIB - float(row["compute_mib"])) <= PRINTED for model in MODELS for row, figures in answers(model)]
    assert sum(equal) >= 0.97 * len(equal)
