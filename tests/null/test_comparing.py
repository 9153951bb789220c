"""Any two files are compared as finely as both tell, each difference with its reason; the setting that differs is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everybyte.cli.app import run
from everybyte.measure.comparing.rows import compared
from everybyte.measure.comparing.side import Amount, Key, Side

JOB = {"model": "openai-community/gpt2", "hardware": {"gpu": "a100-80gb"}, "train": {"micro_batch": 8, "seq_len": 1024}}


def side(rows: dict[tuple[str, str], tuple[int, int]], elsewhere: dict[tuple[str, str], tuple[str, ...]] | None = None, total: int = 0) -> Side:
    """A side that knows places."""
    found = {Key(*key): Amount(*amount) for key, amount in rows.items()}  # type: ignore[arg-type]  # categories
    return Side("estimate", "place", found, {Key(*k): v for k, v in (elsewhere or {}).items()}, {"peak.allocated": total})  # type: ignore[arg-type, misc]


def test_each_difference_has_its_reason() -> None:
    """Rows of other counts, sizes and lifetimes, missing rows, and bytes without a name are told apart."""
    here = side({("parameter", "mlp"): (4096, 4), ("activation", "mlp"): (100, 1), ("gradient", "head"): (7, 1)}, {("input", "batch"): ("forward",)}, 4203)
    there = side({("parameter", "mlp"): (2048, 2), ("activation", "mlp"): (50, 1), ("input", "batch"): (8, 1), ("unknown", ""): (94, 1)}, total=2300)
    found = compared(here, there)
    reasons = {(row.category, row.place): row.reason for row in found.rows}
    assert reasons == {
        ("parameter", "mlp"): "other count",
        ("activation", "mlp"): "other size",
        ("gradient", "head"): "missing there",
        ("input", "batch"): "lives at other times here",
        ("unknown", ""): "missing here",
    }
    assert found.unexplained == 2300 - 2048 - 50 - 8


def written(folder: Path, name: str, train: dict[str, Any]) -> str:
    """A job file."""
    (folder / name).write_text(json.dumps({**JOB, "train": {**JOB["train"], **train}}))  # type: ignore[dict-item]
    return str(folder / name)


def test_the_key_that_differs_between_two_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two jobs that differ in two keys the one that moves more bytes comes first."""
    a, b = written(tmp_path, "a.json", {}), written(tmp_path, "b.json", {"recompute": "full", "grad_clip": 1.0})
    assert run(["compare", a, b, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["suspects"][0]["key"].startswith("train.recompute")
    assert found["suspects"][0]["explains"] > 0.9


def test_a_log_is_compared_by_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a log states more than the estimate is unexplained; a file without a common figure is refused."""
    log = tmp_path / "train.log"
    log.write_text("step:  1  loss:  8.0  memory: 70.00GiB(88.00%)  tps: 7,000\n")
    assert run(["compare", written(tmp_path, "a.json", {}), str(log)]) == 0
    out = capsys.readouterr().out
    assert "1 of 1 figures that both know differ" in out
    assert "unexplained: " in out
    log.write_text("GPU KV cache size: 194,176 tokens\n")
    assert run(["compare", written(tmp_path, "a.json", {}), str(log)]) == 2
    assert "kv.tokens" in capsys.readouterr().err
