"""Laws of advice: each line, applied, does what it says; the verdict is one on the command line, in the library and over HTTP."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from everybyte.cli.app import run
from everybyte.job import read_job
from everybyte.plan.advice import apply
from everybyte.plan.answer import answered

JOBS: dict[str, dict[str, Any]] = {
    "full": {"model": "meta-llama/Llama-3.2-3B", "hardware": {"gpu": "rtx-4090"}, "train": {"framework": "trl", "micro_batch": 4, "seq_len": 1024}},
    "plain loop": {"model": "meta-llama/Llama-3.2-1B", "hardware": {"gpu": "rtx-3060-12gb"}, "train": {"micro_batch": 2, "seq_len": 1024}},
    "two GPUs": {"model": "meta-llama/Llama-3.1-8B", "hardware": {"gpu": "rtx-4090", "gpus": 2}, "train": {"framework": "trl", "adapter": "lora"}},
    "megatron": {
        "model": "meta-llama/Llama-3.1-8B",
        "hardware": {"gpu": "a100-80gb", "gpus": 8},
        "train": {"framework": "megatron", "seq_len": 8192, "micro_batch": 2},
    },
    "vllm refuses": {"model": "Qwen/Qwen3-32B", "hardware": {"gpu": "h100"}, "serve": {"engine": "vllm"}},
    "llama.cpp": {"model": "Qwen/Qwen3-32B", "hardware": {"gpu": "rtx-3090"}, "serve": {"engine": "llama.cpp", "weights": "q5_k_m", "context": 32768}},
    "generate": {"model": "Qwen/Qwen3-14B", "hardware": {"gpu": "rtx-4090"}, "serve": {"engine": "transformers", "context": 8192}},
}


@pytest.mark.parametrize("name", JOBS)
def test_each_line_applied_does_what_it_says(name: str) -> None:
    """The job with the change applied needs what the line said, and fits where it said so."""
    job = read_job(JOBS[name])
    answer = answered(job)
    assert answer.verdict == "does not fit"
    assert answer.advice
    for row in answer.advice:
        after = answered(apply(job, row["change"]), advise=False)
        assert after.figures["peak.device"] == row["peak.device"], row
        assert (after.fits, after.verdict) == (row["fits"], row["verdict"]), row
        assert answer.figures["peak.device"] - row["peak.device"] == row["saves_bytes"]


@pytest.mark.parametrize("name", JOBS)
def test_the_best_line_comes_first(name: str) -> None:
    """Lines that fit stand before those that do not, and each has a price and its flags."""
    rows = answered(read_job(JOBS[name])).advice
    fitting = [row["fits"] for row in rows]
    assert fitting == sorted(fitting, reverse=True)
    assert all(row["price"] and row["flags"].startswith("--") for row in rows)


@pytest.mark.parametrize(
    "line",
    [
        "train meta-llama/Llama-3.1-8B --gpu h100 --dpo",
        "train meta-llama/Llama-3.1-70B --gpu 2x4090 --qlora 16",
        "train meta-llama/Llama-3.2-3B --gpu 4090",
        "serve Qwen/Qwen3-30B-A3B --gpu 4090",
        "serve Qwen/Qwen3-32B --gpu h100",
    ],
)
def test_flags_of_a_line_added_do_what_it_says(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command with the line's flags behind it needs what the line said; --apply says the same."""
    run([*shlex.split(line), "--json"])
    rows = json.loads(capsys.readouterr().out)["advice"]
    assert rows
    for number, row in enumerate(rows[:4], 1):
        for more in (shlex.split(row["flags"]), ["--apply", str(number)]):
            run([*shlex.split(line), *more, "--json"])
            answer = json.loads(capsys.readouterr().out)
            assert answer["figures"]["peak.device"] == row["peak.device"], (row, more)
            assert answer["verdict"] == row["verdict"]


@pytest.mark.parametrize("name", JOBS)
def test_one_verdict_everywhere(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    """Command line, library and API come to the same verdict, chance and advice."""
    from everybyte.web.tasks import estimate as over_http

    path = tmp_path / "job.json"
    path.write_text(json.dumps(JOBS[name]))
    code = run(["estimate", str(path), "--json"])
    here = json.loads(capsys.readouterr().out)
    there = json.loads(over_http(json.dumps(JOBS[name]).encode()))
    for key in ("fits", "verdict", "chance", "advice", "figures", "range"):
        assert here[key] == there[key], key
    assert code == (1 if here["verdict"] == "does not fit" else 0)
