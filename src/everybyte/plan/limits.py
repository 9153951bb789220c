"""Where a setting ends by its nature, so that a search upwards ends too."""

from __future__ import annotations

from typing import NamedTuple

from everybyte.basics.errors import BadInput
from everybyte.job import Job
from everybyte.job.pattern import model_of
from everybyte.models.source import network_of
from everybyte.plan.keys import GPUS, value_of

LARGEST = 2**29
"""No setting is tried beyond this value."""
LARGEST_GPUS = 2**17
LLAMACPP = ("llama.cpp", "ollama")
LLAMACPP_DEVICES = 16
"""GPUs that llama.cpp takes at most (ggml/include/ggml-cuda.h GGML_CUDA_MAX_DEVICES)."""
AXES = ("tp", "pp", "ep", "etp", "dp", "cp", "ulysses", "dp_shard", "dp_replicate")


class Limit(NamedTuple):
    """The largest value that makes sense, and why; without a reason it is only where the search ends."""

    value: int
    why: str = ""


def limit_of(job: Job, path: str) -> Limit:
    """The natural end of a setting: axes of the mesh end at the GPUs that there are."""
    leaf = path.rpartition(".")[2]
    engine = job.serve.engine if job.serve is not None else ""
    if path == GPUS:
        return Limit(LLAMACPP_DEVICES, "llama.cpp takes no more GPUs") if engine in LLAMACPP else Limit(LARGEST_GPUS)
    if ".mesh." in path and leaf in AXES:
        gpus = (job.hardware.gpus if job.hardware else None) or 1
        return Limit(gpus, f"the job has {gpus:,} GPU{'s' if gpus > 1 else ''}")
    try:
        network = network_of(model_of(job), "model")
    except BadInput:
        return Limit(LARGEST)  # the first trial says what is wrong
    if path == "serve.gpu_layers":
        return Limit(network.layers + 1, "these are all its layers")
    context = value_of(job, "serve.context") or network.max_positions
    if path in ("serve.ubatch", "serve.block_size") and context:
        return Limit(context, "it is no longer than the context")
    return Limit(LARGEST)
