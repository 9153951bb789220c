"""How a job lies over several GPUs where it does not say: the first layout of its framework's examples that fits, else the one that needs least."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from everybyte.basics.errors import BadInput
from everybyte.basics.origin import inferred
from everybyte.basics.units import GiB
from everybyte.catalog.ranges import spread
from everybyte.engines.registry import kind_of
from everybyte.estimator import NODE, device_of, estimate, headline
from everybyte.job import Job, job_to_dict
from everybyte.plan.start.points import shardings_of
from everybyte.plan.start.taken import Taken, get, states, with_settings

MEGATRON = ("megatron", "nemo")
SPLITS_BY_LAYER = ("llama.cpp", "ollama", "exllama")
"""Engines that lay layers over GPUs by themselves."""
WORDS = {"ddp": "a copy of the model on each", "fsdp1": "FSDP", "fsdp2": "FSDP", "zero2": "ZeRO-2", "zero3": "ZeRO-3"}


def laid_out(job: Job) -> tuple[Job, Taken]:
    """The job with a layout over its GPUs, where it leaves it open, and the origins of what was taken."""
    gpus = (job.hardware.gpus if job.hardware else None) or 1
    raw = job_to_dict(job)
    if job.serve is not None:
        return _served(job, raw, gpus) if gpus > 1 else (job, {})
    framework = str(get(raw, "train.framework") or "pytorch")
    if framework in MEGATRON and gpus > 1 and not any(states(raw, f"train.mesh.{axis}") for axis in ("tp", "pp", "cp", "ep", "dp_shard", "dp_replicate")):
        return _first_that_fits(job, list(_megatron(raw, gpus)))
    if states(raw, "train.sharding") or states(raw, "train.mesh.dp_shard") or (gpus == 1 and framework != "deepspeed"):
        return job, {}
    return _first_that_fits(job, list(_sharded(framework, gpus)))


def _sharded(framework: str, gpus: int) -> Iterator[tuple[dict[str, Any], str]]:
    for word in shardings_of(framework):
        yield {"train.sharding": word}, inferred(f"{gpus} GPUs hold the model with {WORDS.get(word, word)}" if gpus > 1 else "DeepSpeed's usual stage")


def _megatron(raw: Mapping[str, Any], gpus: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Tensor parallelism inside a node first, then pipeline stages: the smallest product is the fastest."""
    node = min(get(raw, "hardware.gpus_per_node") or NODE, gpus)
    sizes = [2**k for k in range(20) if 2**k <= gpus]
    pairs = [(tp, 1) for tp in sizes if tp <= node] + [(max(tp for tp in sizes if tp <= node), pp) for pp in sizes[1:]]
    for tp, pp in pairs:
        if gpus % (tp * pp) == 0:
            axes = {"train.mesh.tp": tp, **({"train.mesh.sp": True} if tp > 1 else {}), **({"train.mesh.pp": pp} if pp > 1 else {})}
            yield axes, inferred(f"the smallest tensor-parallel size that fits {gpus} GPUs" + (", then pipeline stages" if pp > 1 else ""))


def _first_that_fits(job: Job, layouts: list[tuple[dict[str, Any], str]]) -> tuple[Job, Taken]:
    """The first layout that has room, else the one that needs least; without a GPU the last, which shards most."""
    least: tuple[int, Job, Taken] | None = None
    for settings, origin in layouts:
        try:
            candidate = with_settings(job, settings)
            needs = roughly_needs(candidate)
        except BadInput:
            continue
        found = needs, candidate, dict.fromkeys(settings, origin)
        if has_room(candidate, needs):
            return found[1], found[2]
        least = found if least is None or needs < least[0] else least
    return (least[1], least[2]) if least is not None else (job, {})


RESERVED_MORE = 1.05
OUTSIDE = 3 * GiB // 4
"""About what the allocator reserves beyond what lives, and what a process has beside it: context, libraries, NCCL. Layouts are chosen by it, not answered."""


def roughly_needs(job: Job) -> int:
    """About the bytes on the device, without rows and without a replay of the allocator."""
    return int(headline(job)["peak.allocated"] * RESERVED_MORE) + OUTSIDE


def has_room(job: Job, needs: int) -> bool:
    """Whether a device holds so much even at the upper end of the range for jobs of this kind."""
    capacity = device_of(job).capacity
    found = spread("peak.device", kind_of(job))
    return (needs if found is None else found.ends("peak.device", needs)[1]) <= capacity


def _served(job: Job, raw: Mapping[str, Any], gpus: int) -> tuple[Job, Taken]:
    """Tensor parallelism over the GPUs of a node, pipeline stages over nodes; as many stages more as heads do not divide."""
    engine = get(raw, "serve.engine") or "transformers"
    if engine in SPLITS_BY_LAYER or states(raw, "serve.mesh"):
        return job, {}
    node = get(raw, "hardware.gpus_per_node") or min(NODE, gpus)
    for tp in (size for size in range(node, 0, -1) if gpus % size == 0):
        settings = {"serve.mesh.tp": tp, **({"serve.mesh.pp": gpus // tp} if gpus > tp else {})}
        candidate = with_settings(job, settings)
        try:
            estimate(candidate)
        except BadInput:
            continue
        return candidate, dict.fromkeys(settings, inferred(f"{gpus} GPUs share the weights"))
    return job, {}
