"""Settings of a serving job as engines read them: names of `extra` in one spelling, versions, the formats of the cache, what is already known."""

from __future__ import annotations

import re

from everybyte.basics.dtypes import DTYPES, DType
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.origin import default_of
from everybyte.catalog.releases import Release, newest, releases
from everybyte.job import Job, Serve
from everybyte.job.form import CudaGraphs, ServeMesh
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.step.cache import Format

_NUMBERS = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


def release_of(serve: Serve, line: str, choices: ResolvedSettings) -> Release:
    """The release that rules are chosen by; the newest one that was read where the job does not say, which is told."""
    number = _NUMBERS.search(serve.version or "")
    numbers = tuple(int(part) for part in number.groups() if part) if number else ()
    if numbers and any(numbers):
        return Release(line, numbers)
    found = newest(line)
    stated = f"{releases(line).title} {serve.version}: rules of {found.text}"
    choices.assume(stated if serve.version else f"rules of {found.title}; serve.version chooses another")
    return found


def mesh_of(job: Job) -> ServeMesh:
    """The mesh. Raises BadInput where it needs more GPUs than there are."""
    assert job.serve is not None
    mesh = job.serve.mesh or ServeMesh()
    gpus = (job.hardware.gpus if job.hardware else None) or 1
    needed = (mesh.tp or 1) * (mesh.pp or 1)
    if needed > gpus and job.hardware is not None and job.hardware.gpus is not None:
        raise BadInput("serve.mesh", f"tp {mesh.tp or 1} × pp {mesh.pp or 1} needs {needed} GPUs, hardware.gpus is {gpus}")
    return mesh


KV_TYPES = {
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp32": "fp32",
    "int8": "int8",
    "int4": "int4",
    "nvfp4": "nvfp4",
    "fp4_e2m1": "nvfp4",
    "mxfp8": "mxfp8",
    "mxfp4": "mxfp4",
}


def kv_format(serve: Serve, auto: DType, answered: tuple[str, ...], engine: str, choices: ResolvedSettings) -> Format:
    """How the cache is stored. `auto`: the type that goes with it. Raises Unsupported for one that the engine does not have."""
    given = serve.kv_dtype
    word = choices.pick("serve.kv_dtype", given.k if given else None, "auto", default_of(engine))
    if given is not None and given.v not in (None, given.k):
        raise Unsupported("serve.kv_dtype.v", f"{engine} stores K and V in the same format")
    if word == "auto":
        return Format(auto)
    kind = KV_TYPES.get(word)
    if kind is None or kind not in answered:
        raise Unsupported("serve.kv_dtype", f"{word!r} is no cache format of {engine}; it has auto, {', '.join(answered)}")
    return Format(DTYPES[kind])


def captured(serve: Serve) -> tuple[int, ...] | None:
    """Batch sizes of CUDA graphs: none where they are off, those that the job lists, None where the engine decides."""
    given = serve.cuda_graphs
    if given is False:
        return ()
    return given.sizes if isinstance(given, CudaGraphs) else None


def known_of(job: Job) -> dict[str, int]:
    """Figures and facts that are already known, in bytes or counts."""
    return {key: int(value) for key, value in (job.given or {}).items()}
