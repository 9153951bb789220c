"""The targets of an export: the word of `--to` and the module that writes it."""

from __future__ import annotations

from importlib import import_module

from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.formats.written import Export
from everybyte.job.form import Job

WRITERS: dict[str, str] = {
    "axolotl": "writing.targets",
    "llama-factory": "writing.targets",
    "trl": "writing.targets",
    "transformers": "writing.targets",
    "accelerate": "writing.targets",
    "deepspeed": "writing.targets",
    "peft": "writing.targets",
    "torchtune": "writing.targets",
    "torchtitan": "writing.targets",
    "litgpt": "writing.targets",
    "megatron": "writing.targets",
    "vllm": "serving.writing",
    "sglang": "serving.writing",
    "llama.cpp": "serving.writing",
    "ollama": "serving.writing",
    "tgi": "serving.writing",
    "tensorrt-llm": "serving.writing",
    "lmdeploy": "serving.writing",
    "docker-compose": "serving.compose_file",
}
"""Target -> module below everybyte.formats; it has `write(job, to) -> Export`."""


def export(job: Job, to: str) -> Export:
    """The job in the words of a target. Raises BadInput for a target that is none, or that cannot run such a job."""
    if to not in WRITERS:
        raise BadInput("--to", f"there is no target {to!r}{did_you_mean(to, WRITERS)}; there are {', '.join(WRITERS)}")
    written: Export = import_module(f"everybyte.formats.{WRITERS[to]}").write(job, to)
    return written
