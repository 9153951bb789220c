"""What of a job a trace follows, and what it refuses: nothing is silently left out."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte.basics.errors import BadInput
from everybyte.trace.jobs.program import asked_of

MODEL = "meta-llama/Llama-3.2-1B"
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "fused kernels": ("train.kernels", {"kernels": ["liger"]}),
    "compiling": ("train.compile", {"compile": True}),
    "a base that bitsandbytes does not pack": ("train.quantization.format", {"quantization": {"format": "gptq"}, "adapter": {"kind": "lora"}}),
    "modules that are packed": ("train.quantization.modules", {"quantization": {"format": "nf4", "modules": ["q_proj"]}, "adapter": {"kind": "lora"}}),
    "several ranks": ("train.sharding", {"sharding": "zero2"}),
    "offload": ("train.offload.optimizer", {"offload": {"optimizer": "cpu"}}),
    "a master copy": ("train.precision", {"precision": "bf16-master"}),
    "a framework with a loop of its own": ("train.framework", {"framework": "torchtune"}),
    "an optimizer of another library": ("train.optimizer.name", {"optimizer": {"name": "lion"}}),
    "another type of gradients": ("train.dtypes.grads", {"precision": "bf16", "dtypes": {"grads": "fp32"}}),
    "flash attention in fp32": ("train.attention", {"attention": "flash2", "precision": "fp32"}),
    "every other layer": ("train.recompute.every", {"recompute": {"policy": "full", "every": 2}}),
    "padding in the Trainer": ("train.extra.padded", {"framework": "transformers", "extra": {"padded": True}}),
    "padding under flash attention": ("train.extra.padded", {"precision": "bf16", "attention": "flash2", "extra": {"padded": True}}),
    "a setting of the tool": ("train.extra.surprise", {"extra": {"surprise": 1}}),
}


def job_of(train: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "hardware": {"gpu": "a100-80gb"}, "train": {"framework": "pytorch", **train}, **more}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_trace_cannot_follow_is_refused_by_its_key(name: str) -> None:
    """The message begins with the key of the job and says what helps."""
    key, train = REFUSED[name]
    with pytest.raises(BadInput) as refused:
        asked_of(job_of(train))
    assert refused.value.path == key
    assert len(refused.value.message) > len("is refused")


def test_a_job_of_several_gpus_or_of_serving_is_refused() -> None:
    """A trace of a job is one training process."""
    with pytest.raises(BadInput, match=r"hardware\.gpus"):
        asked_of({**job_of({}), "hardware": {"gpu": "a100-80gb", "gpus": 2}})
    with pytest.raises(BadInput, match="serve"):
        asked_of({"model": MODEL, "serve": {"engine": "vllm"}})


def test_values_that_ask_for_nothing_are_taken() -> None:
    """`none`, false, what is empty and axes of one are what a trace does anyway; the GPU is the job's."""
    asked = asked_of(job_of({"sharding": "none", "compile": False, "mesh": {"tp": 1}, "offload": {"optimizer": "none"}, "kernels": [], "extra": {}}))
    assert asked.gpu == "a100-80gb"
    assert asked.job is not None
