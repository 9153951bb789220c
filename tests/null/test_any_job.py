"""Configurations of other tools where a job goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everybyte.basics.errors import BadInput
from everybyte.cli.any_job import load_any
from everybyte.cli.app import run

AXOLOTL = "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\nmicro_batch_size: 2\nadapter: lora\nlora_r: 8\nlora_target_linear: true\n"


def test_a_job_file_stays_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file with the keys of a job is read as a job, without a word about importing."""
    file = tmp_path / "job.yaml"
    file.write_text("model: gpt2\ntrain: {micro_batch: 3}\n")
    assert load_any(str(file)).mapping == {"model": "gpt2", "train": {"micro_batch": 3}}
    assert capsys.readouterr().err == ""


def test_estimate_takes_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer is that of the imported job, and a note says as what the file was read."""
    file = tmp_path / "tune.yaml"
    file.write_text(AXOLOTL)
    assert run(["estimate", str(file), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["job"]["train"]["framework"] == "axolotl"
    assert "read as axolotl" in shown.err


def test_a_fault_names_the_line_of_the_configuration(tmp_path: Path) -> None:
    """Where the imported job cannot be, the message says where it was written."""
    file = tmp_path / "tune.yaml"
    file.write_text(AXOLOTL + "tensor_parallel_size: 3\nworld_size: 4\ncontext_parallel_size: 2\n")
    assert load_any(str(file)).place_of("train.mesh.tp").endswith("tune.yaml:7")


def test_what_is_no_format_keeps_the_message_of_a_job(tmp_path: Path) -> None:
    """A slip in a job file is told as one."""
    file = tmp_path / "job.yaml"
    file.write_text("modle: gpt2\ntrain: {}\n")
    with pytest.raises(BadInput, match="modle"):
        load_any(str(file)).job()


def test_flags_fill_what_a_file_leaves_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A partial job becomes whole by --model, --gpu and --gpus; places are shown by the file's name."""
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    assert run(["import", str(file), "--model", "gpt2", "--gpu", "h100", "--gpus", "8"]) == 0
    shown = capsys.readouterr()
    assert "model: gpt2" in shown.out
    assert "# --model" in shown.out
    assert "sharding: zero2 # ds.json:1" in " ".join(shown.out.split())
    assert "missing" not in shown.err
