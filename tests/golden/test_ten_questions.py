"""Ten everyday questions, each asked by flags alone at the first attempt: answered, plausible, with advice where it does not fit."""

from __future__ import annotations

import json
import shlex
from typing import Any, NamedTuple

import pytest

from everybyte.cli.app import run

GiB = 2**30


class Question(NamedTuple):
    """A command line, what it may need in GiB per GPU, and what it may come to."""

    line: str
    low: float
    high: float
    verdicts: tuple[str, ...]


QUESTIONS: dict[str, Question] = {
    "QLoRA of 70B on two cards of 24 GB": Question("train meta-llama/Llama-3.1-70B --qlora --gpu 2x4090", 20, 60, ("does not fit",)),
    "full fine-tune of 8B on four A100": Question("train meta-llama/Llama-3.1-8B --gpu 4xa100-80gb --fsdp", 30, 60, ("fits",)),
    "users of a 32B in FP8 on one H100": Question("serve Qwen/Qwen3-32B-FP8 --gpu h100", 70, 79.2, ("fits",)),
    "which quant of a 70B on two 3090 at 32k": Question(
        "serve Llama-3.3-70B-Instruct --gpu 2x3090 --context 32k --weights q4", 18, 30, ("close", "does not fit")
    ),
    "largest context of a 30B mixture on 24 GB": Question("serve Qwen/Qwen3-30B-A3B --gpu 24GB", 20, 70, ("does not fit",)),
    "DPO of 8B on one card of 80 GB": Question("train meta-llama/Llama-3.1-8B --gpu a100-80gb --dpo", 100, 200, ("does not fit",)),
    "70B on 64 H100": Question("train meta-llama/Llama-3.1-70B --gpu 64xh100", 20, 79, ("fits",)),
    "70B on 64 H100 with Megatron": Question("train meta-llama/Llama-3.1-70B --gpu 64xh100 --framework megatron", 20, 79, ("fits",)),
    "fine-tune of a 7B that sees": Question("train Qwen/Qwen2.5-VL-7B-Instruct --gpu h100 --lora", 15, 40, ("fits",)),
    "LoRA of Flux on 16 GB": Question("train black-forest-labs/FLUX.1-dev --gpu 16GB --lora 16", 18, 40, ("does not fit",)),
    "Whisper large on 8 GB": Question("serve openai/whisper-large-v3 --gpu 8GB", 3, 7, ("fits",)),
}


def asked(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """Exit code and answer."""
    code = run([*shlex.split(line), "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out)


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_first_attempt_is_answered(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The figure lies where such runs do, the exit code says what the verdict says, and what does not fit comes with what would."""
    question = QUESTIONS[name]
    code, answer = asked(question.line, capsys)
    assert question.low <= answer["figures"]["peak.device"] / GiB <= question.high
    assert answer["verdict"] in question.verdicts
    assert code == (1 if answer["verdict"] == "does not fit" else 0)
    if answer["fits"] is False:
        assert any(row["fits"] for row in answer["advice"])


def test_no_default_is_shown_as_given(capsys: pytest.CaptureFixture[str]) -> None:
    """What was taken for granted has an origin of its own, and stands among the assumptions with the flag that changes it."""
    _, answer = asked("train meta-llama/Llama-3.1-8B --gpu 4xa100-80gb", capsys)
    assert not [row for row in answer["settings"] if row["origin"] == "given"]
    said = " ".join(answer["assumptions"])
    for flag in ("--framework trl", "--precision bf16-mixed", "--recompute full", "--micro-batch 2", "--seq-len 1024", "--sharding fsdp2"):
        assert flag in said


@pytest.mark.parametrize(
    ("line", "least", "most"),
    [
        ("fit serve Qwen/Qwen3-32B-FP8 --gpu h100 --grow users", 2, 8),
        ("fit serve Qwen/Qwen3-8B --gpu 4090 --grow context", 20_000, 40_960),
        ("fit train meta-llama/Llama-3.2-1B --gpu 24GB --lora 16 --seq-len 512 --grow micro_batch", 8, 400),
        ("fit serve Qwen/Qwen3-8B --gpu 4090 --engine llama.cpp --weights q4_k_m --grow gpus", 16, 16),
        ("fit train meta-llama/Llama-3.1-8B --gpu a100-80gb --grow -gpus", 2, 4),
    ],
)
def test_one_question_is_one_line(line: str, least: int, most: int, capsys: pytest.CaptureFixture[str]) -> None:
    """`fit` takes the flags of `train` and `serve`, and ends."""
    code, found = asked(line, capsys)
    assert code == 0
    assert least <= found["value"] <= most


def test_which_format_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """The widest format of a 70B that two cards of 24 GB hold at 32k is one of four bits or fewer."""
    code, found = asked("fit serve Llama-3.3-70B-Instruct --gpu 2x3090 --context 32k --engine llama.cpp --grow quant", capsys)
    assert code == 0
    assert found["value"].startswith(("q4", "iq4", "q3"))
