"""What is written is accepted by the frameworks' own parsers, and says there what the job says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from everybyte.formats.writers import export
from everybyte.job import Job, read_job

transformers = pytest.importorskip("transformers")


def job(**more: Any) -> Job:
    """A LoRA job."""
    train = {
        "framework": "trl",
        "micro_batch": 3,
        "seq_len": 2048,
        "grad_accum": 5,
        "precision": "bf16-mixed",
        "optimizer": {"name": "adamw-8bit", "paged": True},
        "recompute": {"policy": "full", "reentrant": True},
        "adapter": {"kind": "lora", "rank": 7, "alpha": 9, "targets": ["q_proj", "v_proj"]},
        **more,
    }
    return read_job({"model": "Qwen/Qwen2.5-7B", "train": {key: value for key, value in train.items() if value is not None}, "hardware": {"gpus": 8}})


def text_of(asked: Job, target: str) -> str:
    """The first file of an export."""
    return export(asked, target).files[0].text


def test_training_arguments(tmp_path: Path) -> None:
    """transformers parses the arguments of its trainer, and they mean the same."""
    written = yaml.safe_load(text_of(job(), "transformers"))
    fields = {field.name for field in __import__("dataclasses").fields(transformers.TrainingArguments)}
    known = {key: value for key, value in written.items() if key in fields and key not in ("bf16", "fp16")}
    assert {"per_device_train_batch_size", "gradient_accumulation_steps", "optim", "gradient_checkpointing"} <= known.keys()
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, **known)
    assert arguments.per_device_train_batch_size == 3
    assert arguments.gradient_accumulation_steps == 5
    assert str(arguments.optim) in ("OptimizerNames.PAGED_ADAMW_8BIT", "paged_adamw_8bit")
    assert arguments.gradient_checkpointing_kwargs == {"use_reentrant": True}


def test_adapter_config(tmp_path: Path) -> None:
    """peft reads the file as a LoRA with the job's rank and modules."""
    peft = pytest.importorskip("peft")
    (tmp_path / "adapter_config.json").write_text(text_of(job(), "peft"))
    config = peft.PeftConfig.from_pretrained(str(tmp_path))
    assert isinstance(config, peft.LoraConfig)
    assert (config.r, config.lora_alpha, config.target_modules) == (7, 9, {"q_proj", "v_proj"})


@pytest.mark.parametrize(
    ("sharding", "kind"),
    [("zero3", "DEEPSPEED"), ("fsdp2", "FSDP"), ("fsdp1-grad-op", "FSDP"), ("ddp", "MULTI_GPU")],
)
def test_accelerate_file(tmp_path: Path, sharding: str, kind: str) -> None:
    """accelerate loads the file, and its kind of distribution and number of processes are the job's."""
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file

    file = tmp_path / "accelerate.yaml"
    precision = "bf16-master" if sharding.startswith("zero") else "bf16-mixed"
    file.write_text(text_of(job(sharding=sharding, precision=precision), "accelerate"))
    config = load_config_from_file(str(file))
    assert config.num_processes == 8
    assert str(config.distributed_type).endswith(kind)
    assert config.mixed_precision == "bf16"


def test_deepspeed_json_is_what_transformers_reads() -> None:
    """transformers' own reader of DeepSpeed's configuration finds the stage and the offloading."""
    pytest.importorskip("accelerate")
    from accelerate.utils.deepspeed import HfDeepSpeedConfig

    config = HfDeepSpeedConfig(json.loads(text_of(job(sharding="zero3", precision="bf16-master", offload={"params": "cpu"}), "deepspeed")))
    assert config.is_zero3()
    assert config.is_offload()
