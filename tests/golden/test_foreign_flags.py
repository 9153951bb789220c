"""What wrong and foreign flags and values get: the job that they mean, or a message that says what to do."""

from __future__ import annotations

import json
import shlex

import pytest
from syrupy.assertion import SnapshotAssertion

from everybyte.cli.app import run

TRAIN = "train meta-llama/Llama-3.2-1B --gpu rtx-4090 --framework pytorch"
SERVE = "serve meta-llama/Llama-3.2-1B --gpu rtx-4090"

ASKED: tuple[str, ...] = (
    # the words of Hugging Face, TRL, axolotl, LLaMA-Factory
    f"{TRAIN} --batch-size 2",
    f"{TRAIN} --per_device_train_batch_size 2",
    f"{TRAIN} --max_seq_length 512",
    f"{TRAIN} --cutoff-len 512",
    f"{TRAIN} --gradient_accumulation_steps 4",
    f"{TRAIN} --gradient-checkpointing",
    f"{TRAIN} --gradient_checkpointing True",
    f"{TRAIN} --gradient_checkpointing false",
    f"{TRAIN} --bf16",
    f"{TRAIN} --mixed-precision bf16",
    f"{TRAIN} --load-in-4bit --use-peft",
    f"{TRAIN} --load-in-4bit",
    f"{TRAIN} --lora_r 8 --lora-target-modules q_proj,v_proj",
    f"{TRAIN} --attn-implementation flash_attention_2",
    f"{TRAIN} --optim adamw_bnb_8bit",
    f"{TRAIN} --use-liger-kernel",
    f"{TRAIN} --dpo",
    f"{TRAIN} --grpo",
    # DeepSpeed, FSDP, Megatron
    f"{TRAIN} --gpus 2 --zero 3",
    f"{TRAIN} --gpus 2 --zero 4",
    f"{TRAIN} --gpus 2 --fsdp",
    f"{TRAIN} --gpus 2 --sharding fsdp",
    f"{TRAIN} --gpus 2 --sharding zero-3",
    f"{TRAIN} --tensor-model-parallel-size 2 --gpus 2",
    f"{TRAIN} --deepspeed ds.json",
    # values that can only mean one thing, and some that cannot
    f"{TRAIN} --precision bfloat16",
    f"{TRAIN} --precision bf17",
    f"{TRAIN} --attention fa2",
    f"{TRAIN} --recompute true",
    f"{TRAIN} --recompute sometimes",
    f"{TRAIN} --seq-len 2k",
    f"{TRAIN} --seq-len max",
    f"{TRAIN} --seq-len long",
    f"{TRAIN} --micro-batch 0",
    f"{TRAIN} --framework llamafactory",
    f"{TRAIN} --framework unsloth",
    f"{TRAIN} --optimizer adamm",
    # flags of no memory, of the other command, of nobody
    f"{TRAIN} --learning-rate 1e-4",
    f"{TRAIN} --num_train_epochs 3",
    f"{TRAIN} --kv-dtype fp8",
    f"{TRAIN} --checkpoints",
    f"{TRAIN} --optimzer sgd",
    f"{TRAIN} --frobnicate 3",
    # vLLM, SGLang, llama.cpp, ollama
    f"{SERVE} --max-model-len 8k",
    f"{SERVE} --max-model-len max",
    f"{SERVE} --max-num-seqs 16",
    f"{SERVE} --gpu-memory-utilization 0.8",
    f"{SERVE} --tensor-parallel-size 2 --gpus 2",
    f"{SERVE} --enforce-eager",
    f"{SERVE} --quantization awq",
    f"{SERVE} --dtype bfloat16",
    f"{SERVE} --kv-cache-dtype fp8",
    f"{SERVE} --engine sglang --mem-fraction-static 0.8",
    f"{SERVE} --engine llamacpp --weights Q4_K_M --ctx-size 4096 -ngl 99",
    f"{SERVE} --engine llama.cpp --weights q4 -np 2 --cache-type-k q8_0 --cache-type-v q8_0",
    f"{SERVE} --engine vllmm",
    f"{SERVE} --weights q99_k",
    f"{SERVE} --temperature 0.7",
    f"{SERVE} --recompute full",
    "serve llama3.2:1b --gpu 8GB",
    "serve bartowski/Llama-3.2-1B-GGUF:Q4_K_M --gpu 8GB",
    # hardware
    "serve meta-llama/Llama-3.2-1B --gpu 4090",
    "serve meta-llama/Llama-3.2-1B --gpu 2xh100",
    "serve meta-llama/Llama-3.2-1B --gpu 24GB",
    "serve meta-llama/Llama-3.2-1B --gpu h100 --gpus two",
    "serve meta-llama/Llama-3.2-1B --gpu h1000",
    "serve meta-lama/Llama-3.2-1B --gpu h100",
    "trian meta-llama/Llama-3.2-1B",
    "meta-llama/Llama-3.2-1B --gpu h100",
)
"""Command lines as people type them."""


def said(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The message, or the job as it was understood."""
    code = run([*shlex.split(line), "--json"])
    out, err = capsys.readouterr()
    if code == 2:
        found = json.loads(out).get("error") if out.strip() else None
        return f"refused: {found['path']}: {found['message']}" if found else err.strip()
    answer = json.loads(out)
    stated = [f"{row['key']}={row['value']}" for row in answer["settings"] if row["origin"] == "given" and row["key"] != "train.framework"]
    hardware = answer["job"]["hardware"]
    gpu = hardware["gpu"] if isinstance(hardware["gpu"], str) else hardware["gpu"]["name"]
    extra = answer["job"].get("train", {}).get("extra")
    return f"{answer['verdict']}: {gpu} x{hardware.get('gpus', 1)}, {', '.join(stated)}" + (f", extra {extra}" if extra else "")


def test_every_flag_of_the_table_is_understood_or_answered(capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion) -> None:
    """Each of them is read as what it means, or gets a message with a way out; none gets a traceback or silence."""
    assert len(ASKED) >= 60
    assert {line: said(line, capsys) for line in ASKED} == snapshot


@pytest.mark.parametrize("line", ASKED[:3] + ASKED[-3:])
def test_no_answer_is_a_fault_of_the_program(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No message speaks of an internal error."""
    assert "internal error" not in said(line, capsys)
