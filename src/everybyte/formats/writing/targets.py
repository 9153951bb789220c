"""Which function writes which training framework's form."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from everybyte.basics.errors import BadInput
from everybyte.formats.writing.settings import Settings, Text
from everybyte.formats.written import Export, Written
from everybyte.job import Job


class Target(NamedTuple):
    """A training framework."""

    writer: str
    """Module and function of this package."""
    file: str
    """What its file is usually called."""


TARGETS = {
    "trl": Target("huggingface.trl", "trl.yaml"),
    "transformers": Target("huggingface.trl", "arguments.yaml"),
    "axolotl": Target("huggingface.axolotl", "axolotl.yaml"),
    "llama-factory": Target("huggingface.llama_factory", "llama_factory.yaml"),
    "deepspeed": Target("launchers.deepspeed", "ds_config.json"),
    "accelerate": Target("launchers.accelerate", "accelerate.yaml"),
    "peft": Target("launchers.peft", "adapter_config.json"),
    "torchtune": Target("native.torchtune", "torchtune.yaml"),
    "torchtitan": Target("native.torchtitan", "torchtitan.toml"),
    "litgpt": Target("native.litgpt", "litgpt.yaml"),
    "megatron": Target("native.megatron", "pretrain.sh"),
}


def write(job: Job, to: str) -> Export:
    """The job in a framework's own form. Raises BadInput for a job that serves."""
    if job.train is None:
        raise BadInput("--to", f"the job serves, and {to} trains")
    target = TARGETS[to]
    module, _, name = target.writer.partition(".")
    writer: Callable[[Settings], Text] = getattr(import_module(f"everybyte.formats.writing.{module}"), name)
    text, left = writer(Settings(job))
    return Export((Written(target.file, text),), tuple((key, f"{to}'s form has no place for it here") for key in left))
