"""Serving jobs as a compose file: one service in the engine's own image."""

from __future__ import annotations

from typing import Any

import yaml

from everybyte.basics.errors import BadInput
from everybyte.formats.serving.writing import TARGETS, command_of
from everybyte.formats.written import Export, Written
from everybyte.job.form import Job

IMAGES = {
    "vllm": ("vllm/vllm-openai:v{}", ("vllm", "serve")),
    "sglang": ("lmsysorg/sglang:v{}", ()),
    "llama.cpp": ("ghcr.io/ggml-org/llama.cpp:server-cuda", ("llama-server",)),
    "ollama": ("ollama/ollama:{}", ("ollama", "serve")),
    "tgi": ("ghcr.io/huggingface/text-generation-inference:{}", ("text-generation-launcher",)),
    "tensorrt-llm": ("nvcr.io/nvidia/tensorrt-llm/release:{}", ()),
    "lmdeploy": ("openmmlab/lmdeploy:v{}", ()),
}
"""Image with a place for the version, and what it starts by itself."""


def write(job: Job, to: str) -> Export:
    """The job as a compose file. Raises BadInput if the job does not serve."""
    if job.serve is None or job.serve.engine not in IMAGES:
        raise BadInput("serve.engine", f"a compose file needs one of {', '.join(IMAGES)}")
    engine = job.serve.engine
    command = command_of(job, engine)
    image, own = IMAGES[engine]
    words = [*command.program[len(own) :], *(word for flag in command.flags for word in flag)]
    version = job.serve.version or "latest"
    service: dict[str, Any] = {"image": image.format(version).replace(":vlatest", ":latest")}
    if words and engine != "ollama":
        service["command"] = words
    if command.environment:
        service["environment"] = dict(command.environment)
    if job.hardware is not None and job.hardware.gpus:
        service["environment"] = {name: value for name, value in service.get("environment", {}).items() if name != "CUDA_VISIBLE_DEVICES"} or None
        service["deploy"] = {"resources": {"reservations": {"devices": [{"driver": "nvidia", "count": job.hardware.gpus, "capabilities": ["gpu"]}]}}}
    service = {key: value for key, value in service.items() if value is not None}
    left_out = list(command.left_out)
    if engine == "ollama" and command.flags:
        left_out += [(" ".join(flag), "it belongs into a Modelfile; export to ollama writes one") for flag in command.flags]
    files = [Written("docker-compose.yml", yaml.safe_dump({"services": {TARGETS[engine].title.casefold().replace(" ", "-"): service}}, sort_keys=False))]
    if command.config:
        files.append(Written("options.yaml", yaml.safe_dump(command.config, sort_keys=False)))
    return Export(tuple(files), tuple(left_out))
