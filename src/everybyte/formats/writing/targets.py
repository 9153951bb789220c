"""Which function writes which framework's form."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.formats.writing.settings import Settings, Written
from everybyte.job import Job

TARGETS = {
    "trl": "huggingface.trl",
    "transformers": "huggingface.trl",
    "axolotl": "huggingface.axolotl",
    "llama-factory": "huggingface.llama_factory",
    "deepspeed": "launchers.deepspeed",
    "accelerate": "launchers.accelerate",
    "peft": "launchers.peft",
    "torchtune": "native.torchtune",
    "torchtitan": "native.torchtitan",
    "litgpt": "native.litgpt",
    "megatron": "native.megatron",
    "vllm": "serving.vllm",
    "sglang": "serving.sglang",
    "tgi": "serving.tgi",
    "tensorrt-llm": "serving.tensorrt_llm",
    "llama.cpp": "serving.llama_cpp",
    "ollama": "serving.ollama",
    "compose": "serving.compose",
}
"""Word of --to -> module and function of this package."""
SERVING = frozenset({"vllm", "sglang", "tgi", "tensorrt-llm", "llama.cpp", "ollama", "compose"})


def write(job: Job, target: str) -> Written:
    """The job in a framework's own form. Raises BadInput for an unknown framework, and for a job that serves where one trains."""
    if target not in TARGETS:
        raise BadInput("--to", f"there is no form {target!r}{did_you_mean(target, TARGETS)}; there are {', '.join(TARGETS)}")
    if (job.serve is not None) != (target in SERVING):
        does, other = ("serves", "trains") if job.serve is not None else ("trains", "serves")
        raise BadInput("--to", f"the job {does}, and {target} {other}")
    module, _, name = TARGETS[target].partition(".")
    writer: Callable[[Settings], Written] = getattr(import_module(f"everybyte.formats.writing.{module}"), name)
    return writer(Settings(job))
