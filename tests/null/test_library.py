"""The package as a library: what there is, how it shows itself, and that the examples run."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from pathlib import Path

import pytest

import everybyte
from everybyte import library

ROOT = Path(__file__).parents[2]
LORA = str(ROOT / "examples/llama-3.1-8b-lora-24gb.yaml")
NOTEBOOK = ROOT / "examples/library.ipynb"


def test_dir_lists_what_there_is() -> None:
    """`dir(everybyte)` names every public thing, and each is there."""
    assert set(dir(everybyte)) == set(everybyte.__all__)
    assert {"estimate", "fit", "compare", "trace", "models", "gpus", "read_job"} <= set(dir(everybyte))
    assert all(getattr(everybyte, name) is not None for name in dir(everybyte))


def test_dir_loads_nothing() -> None:
    """Listing the names loads none of the rooms behind them."""
    code = "import sys, everybyte; dir(everybyte); print([m for m in sys.modules if m in ('msgspec', 'everybyte.estimator', 'everybyte.library')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_things_show_themselves_in_a_line() -> None:
    """The repr of an answer, of a rank and of a row is one short line."""
    answer = everybyte.estimate(LORA)
    assert repr(answer).startswith("<Answer 'Llama-3.1-8B LoRA on one RTX 4090': ")
    assert all(len(repr(thing)) < 160 and "\n" not in repr(thing) for thing in (answer, *answer.ranks, *answer.worst.ledger))


def test_fit_and_compare() -> None:
    """A search and a comparison take a path, a mapping or a job alike."""
    job = everybyte.read_job(LORA)
    assert everybyte.fit(job, "seq_len").value == everybyte.fit(LORA, "seq_len").value
    rows = everybyte.compare(LORA, everybyte.estimate(job))
    assert rows == []
    longer = {"model": "Qwen/Qwen2.5-0.5B", "hardware": {"gpu": "l4"}, "train": {"micro_batch": 1, "seq_len": 512}}
    shorter = {**longer, "train": {"micro_batch": 1, "seq_len": 256}}
    assert sum(row.more for row in everybyte.compare(longer, shorter)) > 0


def test_searches() -> None:
    """Models and GPUs are found by words, all of them without."""
    assert "Qwen/Qwen3-32B" in [row.name for row in everybyte.models("qwen3 32b")]
    assert all("4090" in gpu.name for gpu in everybyte.gpus("4090"))
    assert len(everybyte.models()) > 100


def test_examples_of_docstrings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the docstrings of the library show is what happens."""
    monkeypatch.chdir(ROOT)
    assert doctest.testmod(library).failed == 0


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code cells of the notebook run one after the other."""
    monkeypatch.chdir(ROOT / "examples")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    exec(compile(code, str(NOTEBOOK), "exec"), {"__name__": "__notebook__"})
