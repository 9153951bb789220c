"""Which folder answers which framework or serving engine."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from everybyte.basics.errors import Unsupported
from everybyte.job import Job
from everybyte.layers.network import Network
from everybyte.rules.accounting.account import Account, Device

TRAIN: dict[str, str] = {
    "pytorch": "pytorch", "accelerate": "pytorch", "transformers": "transformers", "trl": "transformers", "axolotl": "transformers",
    "llama-factory": "transformers", "litgpt": "litgpt", "torchtune": "torchtune", "torchtitan": "torchtitan", "nanogpt": "nanogpt", "textbook": "textbook",
    "megatron": "megatron", "nemo": "megatron", "deepspeed": "deepspeed",
}  # fmt: skip
"""framework -> folder."""

PREFERENCE = ("transformers",)
"""Folders that know train.extra.rlhf_type."""

SERVE: dict[str, str] = {
    "transformers": "transformers", "sglang": "sglang", "vllm": "vllm", "tensorrt-llm": "tensorrt_llm", "tgi": "tgi", "lmdeploy": "lmdeploy",
    "exllama": "exllama", "mlx": "mlx", "llama.cpp": "llamacpp", "ollama": "llamacpp",
}  # fmt: skip
"""engine -> folder."""


def folder_of(job: Job) -> tuple[str, str]:
    """(`train` or `serve`, folder) of a job. Raises Unsupported for a framework or engine that is not answered yet."""
    name: str
    if job.train is not None:
        section, name, table, path = "train", job.train.framework or "pytorch", TRAIN, "train.framework"
    else:
        assert job.serve is not None
        section, name, table, path = "serve", job.serve.engine or "transformers", SERVE, "serve.engine"
    folder = table.get(name)
    if folder is None:
        raise Unsupported(path, f"{name!r} is not supported yet; supported: {', '.join(sorted(table))}")
    return section, folder


def runs_on_host(job: Job) -> bool:
    """Whether the engine of a job can do without a GPU."""
    return job.serve is not None and job.serve.engine in ("llama.cpp", "ollama")


def runs_on_several(job: Job) -> bool:
    """Whether a job is spread over GPUs: such runs are measured and learnt from apart."""
    return ((job.hardware.gpus if job.hardware else None) or 1) > 1


def account(job: Job, network: Network, device: Device) -> Account:
    """Lets the engine of a job account for it. Raises Unsupported for one that is not answered yet."""
    section, folder = folder_of(job)
    if job.train is not None and folder not in PREFERENCE and (job.train.extra or {}).get("rlhf_type"):
        from everybyte.rules.from_job.preference import refuse_preference  # most jobs do not need it

        refuse_preference(job.train, job.train.framework or "pytorch")
    engine: Any = import_module(f"everybyte.engines.{folder}.{section}")
    found: Account = engine.account(job, network, device)
    return found
