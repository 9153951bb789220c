"""The whole-number settings of a job by their names, and jobs with one of them changed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod
from typing import Any

from msgspec import inspect

from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.job import Job, job_to_dict, read_job

GPUS = "hardware.gpus"
SEQUENCES = "serve.sequences"
SHARE = "serve.memory_fraction"
"""The one setting that is a share: it is searched in thousandths (plan.share)."""


SPOKEN: dict[str, dict[str, str]] = {
    "train": {
        "batch": "micro_batch",
        "batch_size": "micro_batch",
        "seq_length": "seq_len",
        "max_seq_length": "seq_len",
        "lora_rank": "adapter.rank",
        "lora": "adapter.rank",
    },
    "serve": {
        "users": "sequences",
        "concurrency": "sequences",
        "batch": "sequences",
        "batch_size": "sequences",
        "max_num_seqs": "sequences",
        "ctx": "context",
        "seq_len": "context",
        "max_model_len": "context",
        "ctx_size": "context",
        "gpu_memory_utilization": "memory_fraction",
        "mem_fraction_static": "memory_fraction",
        "ngl": "gpu_layers",
        "n_gpu_layers": "gpu_layers",
    },
}
"""What people call a setting of a training or a serving job."""


def resolve_key(job: Job, name: str) -> str:
    """The full key path of a setting: `micro_batch` -> `train.micro_batch`, `gpus` -> `hardware.gpus`. Raises BadInput with the nearest names."""
    purpose = "train" if job.train is not None else "serve"
    name = name.removeprefix("--").replace("-", "_")
    name = SPOKEN[purpose].get(name, name)
    if purpose == "serve" and name in (SHARE, SHARE.partition(".")[2]):
        return SHARE
    known = [path for path in _whole_number_paths() if path.startswith((f"{purpose}.", "hardware.gpus"))]
    found = [path for path in known if path == name or path.endswith(f".{name}")]
    if len(found) == 1:
        return found[0]
    direct = [path for path in found if path == f"{purpose}.{name}"]
    if direct:
        return direct[0]
    if found:
        raise BadInput("--grow", f"{name} could be {' or '.join(found)}; write the whole path")
    short = [path.split(".", 1)[1] for path in known]
    raise BadInput("--grow", f"a {purpose} job has no whole-number setting {name!r}{did_you_mean(name, short)}")


@cache
def _whole_number_paths() -> tuple[str, ...]:
    return tuple(_paths("", inspect.type_info(Job)))


def _paths(path: str, form: inspect.Type) -> Iterator[str]:
    members = form.types if isinstance(form, inspect.UnionType) else (form,)
    if any(isinstance(member, inspect.IntType) for member in members):
        yield path
    for member in members:
        if isinstance(member, inspect.StructType):
            for field in member.fields:
                yield from _paths(f"{path}.{field.encode_name}" if path else field.encode_name, field.type)


def value_of(job: Job, path: str) -> int | None:
    """The value that the job states for a key path; None if it states none."""
    value: Any = job
    for name in path.split("."):
        value = getattr(value, name, None)
    return value if isinstance(value, int) else None


def with_value(job: Job, path: str, value: float) -> Job:
    """The job with one setting changed. In training, more or fewer GPUs go to data parallel, so its sizes are left open; in serving they share the weights
    of one replica (tensor parallel, times the stages). Raises BadInput where it contradicts others."""
    raw = job_to_dict(job)
    *sections, last = path.split(".")
    target = raw
    for section in sections:
        target = target.setdefault(section, {})
    target[last] = value
    if path == SEQUENCES and raw["serve"].get("engine") in ("llama.cpp", "ollama"):
        # its server divides one cache among the slots, unless each has one of its own
        raw["serve"] |= {"parallel_slots": value, "unified_kv": False}
    mesh = raw.get("train", {}).get("mesh", {})
    if path == GPUS:
        for axis in ("dp_replicate", "dp_shard"):
            mesh.pop(axis, None)
        if job.serve is not None:
            axes = raw["serve"].setdefault("mesh", {})
            axes["tp"] = max(int(value) // (axes.get("pp") or 1), 1)
    return read_job(raw)


def gpu_step(job: Job) -> int:
    """GPUs come in multiples of this: the product of the mesh axes that are fixed. In serving only stages are (see `with_value`)."""
    if job.serve is not None:
        return (job.serve.mesh.pp if job.serve.mesh else None) or 1
    mesh: Any = (job.train.mesh if job.train else None) or None
    return prod(getattr(mesh, axis, None) or 1 for axis in ("tp", "cp", "pp", "ulysses"))
