"""Laws of imports and exports: a job that is written and read again is the same job, and what no table knows is reported."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everybyte.formats.finish import Imported, finish
from everybyte.formats.read import read
from everybyte.formats.source import Source
from everybyte.formats.writers import WRITERS, export
from everybyte.formats.writing.settings import Settings
from everybyte.job import Job, read_job

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

SHARDINGS = st.sampled_from(["zero1", "zero2", "zero3", "fsdp1", "fsdp1-grad-op", "fsdp2", "fsdp2-no-reshard", None])
OPTIMIZERS = st.sampled_from(
    [{"name": "adamw", "impl": "fused"}, {"name": "adamw"}, {"name": "adamw-8bit"}, {"name": "adamw-8bit", "paged": True}, {"name": "lion-8bit"}]
)


@st.composite
def trained(draw: st.DrawFn) -> dict[str, Any]:
    """A training job of the Trainer's family."""
    sharding = draw(SHARDINGS)
    is_zero = str(sharding).startswith("zero")
    precision = draw(st.sampled_from(["bf16", "fp16"])) + ("-master" if is_zero else "-mixed")
    train: dict[str, Any] = {
        "framework": "trl",
        "micro_batch": draw(st.integers(1, 64)),
        "seq_len": draw(st.integers(16, 32768)),
        "grad_accum": draw(st.integers(1, 64)),
        "precision": precision,
        "optimizer": draw(OPTIMIZERS),
        "attention": draw(st.sampled_from(["flash2", "sdpa", "eager"])),
    }
    if draw(st.booleans()):
        train["recompute"] = {"policy": "full", "reentrant": draw(st.booleans())}
    else:
        train["recompute"] = {"policy": "none"}
    if draw(st.booleans()):
        targets = draw(st.one_of(st.just("all-linear"), st.lists(st.sampled_from(MODULES), min_size=1, unique=True)))
        train["adapter"] = {
            "kind": draw(st.sampled_from(["lora", "dora"])),
            "rank": draw(st.integers(1, 256)),
            "alpha": draw(st.integers(1, 512)),
            "targets": targets,
        }
        if draw(st.booleans()):
            train["quantization"] = {"format": "nf4", "double": draw(st.booleans())}
    if sharding is not None:
        train["sharding"] = sharding
    if sharding == "zero3" and draw(st.booleans()):
        train["offload"] = {"optimizer": "cpu", "params": "cpu"}
        train["buckets"] = {"reduce": draw(st.integers(10**6, 10**9)), "live": draw(st.integers(10**6, 10**9))}
    return {"model": draw(st.sampled_from(["Qwen/Qwen2.5-7B", "gpt2"])), "train": train}


@st.composite
def served(draw: st.DrawFn) -> dict[str, Any]:
    """A serving job."""
    serve: dict[str, Any] = {
        "context": draw(st.integers(128, 131072)),
        "sequences": draw(st.integers(1, 1024)),
        "memory_fraction": draw(st.sampled_from([0.5, 0.85, 0.9])),
    }
    if draw(st.booleans()):
        serve["kv_dtype"] = "fp8"
    tp = draw(st.sampled_from([1, 2, 4]))
    serve["mesh"] = {"tp": tp}
    return {"model": "Qwen/Qwen2.5-7B-Instruct", "hardware": {"gpus": tp}, "serve": serve}


def again(text: str, name: str, target: str | None) -> Imported:
    """What is read of a written form."""
    (draft,) = read([Source(text, name)], as_format=target)
    return finish(draft)


def leaves(job: Job) -> dict[str, Any]:
    """Job key -> value."""
    given = Settings(job)
    return {key: given.peek(key) for key in given.left()}


def differences(job: Job, target: str, name: str, as_format: str | None) -> dict[str, tuple[Any, Any]]:
    """Settings that a form has a place for and that come back as something else."""
    written = export(job, target)
    left = dict(written.left_out)
    before, after = leaves(job), leaves(read_job(again(written.files[0].text, name, as_format).job))
    return {key: (value, after.get(key)) for key, value in before.items() if key not in left and after.get(key) != value}


@pytest.mark.parametrize("target", ["trl", "axolotl", "llama-factory"])
@settings(max_examples=40, deadline=None)
@given(raw=trained())
def test_training_round_trip(target: str, raw: dict[str, Any]) -> None:
    """Job -> configuration -> job is the identity for all that the form has a place for."""
    assert differences(read_job(raw), target, "x.yaml", target) == {}


@pytest.mark.parametrize("target", ["vllm", "sglang"])
@settings(max_examples=30, deadline=None)
@given(raw=served())
def test_serving_round_trip(target: str, raw: dict[str, Any]) -> None:
    """Job -> command -> job is the identity for all that the command has a flag for."""
    raw["serve"]["engine"] = target
    assert differences(read_job(raw), target, "x.sh", None) == {}


@settings(max_examples=60, deadline=None)
@given(key=st.from_regex(r"[a-z]{3,8}_zz[a-z]{3,8}", fullmatch=True), value=st.one_of(st.integers(), st.booleans(), st.text("abc", min_size=1)))
def test_a_key_that_no_table_has_is_reported(key: str, value: object) -> None:
    """Nothing that somebody wrote is dropped in silence."""
    text = f"base_model: gpt2\nsequence_len: 128\n{key}: {value}\n"
    assert [unknown.key for unknown in again(text, "x.yaml", None).unknown] == [key]


@pytest.mark.parametrize("target", sorted(WRITERS))
def test_every_target_writes_something_or_says_why_not(target: str) -> None:
    """Each word of --to has a writer."""
    shape = {"family": "llama", "layers": 2, "hidden": 64, "ffn": 128, "heads": 4, "vocab": 256, "activation": "swiglu", "norm": "rmsnorm", "position": "rope"}
    model: Any = {"shape": shape} if target == "megatron" else "meta-llama/Llama-3.1-8B" if target == "torchtitan" else "meta-llama/Llama-3.1-8B-Instruct"
    serves = {"serve": {"engine": target if target != "docker-compose" else "vllm", "context": 2048}}
    trains = {"train": {"micro_batch": 1, "seq_len": 128, "precision": "bf16"}}
    job = read_job(
        {"model": model, **(serves if target in ("vllm", "sglang", "tgi", "tensorrt-llm", "llama.cpp", "ollama", "lmdeploy", "docker-compose") else trains)}
    )
    assert export(job, target).files[0].text.strip()
