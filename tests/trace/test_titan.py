"""torchtitan's published runs of Llama 3.1 8B, traced: what their GPUs reserved, without a GPU."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from everybyte.allocator.reserved import peak_reserved
from everybyte.allocator.settings import read_alloc_conf
from everybyte.catalog.gpus import find_gpu
from everybyte.rules.accounting.overhead import workspace_line
from everybyte.trace.request import TraceRequest
from everybyte.trace.results.answer import TRAINING_HANDLES, script
from everybyte.trace.run import run

EXAMPLE = Path(__file__).parents[2] / "examples/trace/titan_llama.py"
CLOSE = 0.05
CONFS = ("expandable_segments:True", "")
"""torchtitan's run_llama_train.sh asks for expandable segments, its multinode_trainer.slurm does not; benchmarks/llama3_h100_202412_torchtitan.md does not say
how the runs were started."""


def record(name: str) -> dict[str, Any]:
    """A measured run."""
    lines = (files("everybyte.measure") / "data" / "train_distributed.jsonl").read_text().splitlines()
    found: dict[str, Any] = next(row for row in map(json.loads, lines) if row["id"] == name)
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", ["tt01-titan-meta-llama-3.1-8b", "tt08-titan-meta-llama-3.1-8b"])
def test_a_published_run_reserves_what_its_trace_says(name: str) -> None:
    """On 8 and on 128 GPUs the traced step of eager torchtitan reserves within 5 % of what was published, with and without expandable segments."""
    measured = record(name)
    hardware = measured["job"]["hardware"]
    traced = run(TraceRequest(target=f"{EXAMPLE}:llama_8b", world=hardware["gpus"]))
    workspace = workspace_line(find_gpu("h100-80gb").compute_capability, TRAINING_HANDLES)
    for conf in CONFS:
        reserved = peak_reserved(script(traced, (workspace,)), read_alloc_conf(conf), hardware["gpu"]["memory_bytes"]).peak
        assert reserved == pytest.approx(measured["measured"][0]["value"], rel=CLOSE), conf
