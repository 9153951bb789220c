"""What a plan is asked for: the job whose layout is open, the cluster, and what must stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everybyte.basics.errors import BadInput, did_you_mean
from everybyte.basics.record import Record
from everybyte.catalog.gpus import Gpu, find_gpu
from everybyte.engines.registry import folder_of
from everybyte.estimator import NODE, device_of
from everybyte.job import CustomGpu, Job
from everybyte.job.pattern import model_of
from everybyte.models.source import network_of
from everybyte.models.widths import Widths, widths_of
from everybyte.plan.layouts.families import Family, family_of
from everybyte.plan.layouts.layout import AXES, SPOKEN
from everybyte.plan.time.shape import NetworkShape, shape_of

WHOLE = ("tp", "cp", "pp", "ep", "etp", "dp", "micro_batch", "grad_accum", "virtual")
"""Choices that are whole numbers."""
MOST_GPUS = 1 << 20
"""More GPUs than any cluster has are a slip of the pen."""


class Asked(Record, frozen=True, kw_only=True):
    """A question for one number of GPUs."""

    job: Job
    gpus: int
    node: int
    """GPUs that fast links join."""
    capacity: int
    card: Gpu | None
    """None for a card that the job describes itself."""
    global_batch: int
    """Sequences of a step, of all ranks together."""
    seq_len: int
    layers: int
    """Blocks of the network that pipeline stages divide."""
    widths: Widths
    shape: NetworkShape
    family_name: str
    family: Family
    fixed: tuple[tuple[str, str], ...] = ()

    def keeps_any(self, name: str) -> bool:
        """Whether a choice must be a certain one."""
        return any(key == name for key, _ in self.fixed)

    def keeps(self, name: str, value: Any) -> bool:
        """Whether a value is allowed by what must stay."""
        return all(str(value) == wanted for key, wanted in self.fixed if key == name)


def read_gpus(text: str) -> tuple[int, ...]:
    """`64,128` as numbers. Raises BadInput."""
    counts = []
    for part in text.replace(" ", "").split(","):
        if not part.isdecimal() or not 1 <= int(part) <= MOST_GPUS:
            raise BadInput("--gpus", f"{part!r} is no number of GPUs from 1 to {MOST_GPUS:,}; write --gpus 64 or --gpus 64,128")
        counts.append(int(part))
    return tuple(dict.fromkeys(counts))


def read_fixed(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """`tp=8` as a choice and its value. Raises BadInput for a choice that plans do not make."""
    found: dict[str, str] = {}
    for text in (part for one in texts for part in one.split(",")):
        name, sign, value = text.partition("=")
        name = SPOKEN.get(name.strip(), name.strip()).replace("-", "_")
        if not sign or not value.strip():
            raise BadInput("--fix", f"{text!r} names no value; write --fix tp=8")
        if name not in AXES:
            raise BadInput("--fix", f"a plan does not choose {name!r}{did_you_mean(name, AXES)}; it chooses {', '.join(AXES)}")
        if name in WHOLE and not (value.strip().isdecimal() and int(value) > 0):
            raise BadInput("--fix", f"{name} is a whole number from 1, not {value.strip()!r}")
        found[name] = value.strip()
    return tuple(sorted(found.items()))


def asked_for(job: Job, gpus: int, fixed: Mapping[str, str] | None = None, global_batch: int | None = None) -> Asked:
    """The question behind a job on `gpus` GPUs. Raises BadInput where the job says too little."""
    train, hardware = job.train, job.hardware
    if train is None:
        raise BadInput("train", "is needed: this plans training; for servers there are `everybyte fit` and `everybyte hardware`")
    if hardware is None or hardware.gpu is None:
        raise BadInput("hardware.gpu", "is needed to say what fits; name a GPU")
    if not train.seq_len:
        raise BadInput("train.seq_len", "is needed: a plan keeps the length of the sequences")
    folder_of(job)
    network = network_of(model_of(job), "model")
    shape = shape_of(network)
    if shape is None:
        raise BadInput("model", "plans are made for language models")
    per_node = hardware.gpus_per_node or NODE
    if gpus > per_node and gpus % per_node:
        raise BadInput("--gpus", f"{gpus:,} GPUs are not whole nodes of {per_node}; give a multiple of it, or another hardware.gpus_per_node")
    name, family = family_of(train.framework or "pytorch")
    return Asked(
        job=job,
        gpus=gpus,
        node=min(per_node, gpus),
        capacity=device_of(job).capacity,
        card=None if isinstance(hardware.gpu, CustomGpu) else find_gpu(hardware.gpu),
        global_batch=global_batch or batch_of(job),
        seq_len=train.seq_len,
        layers=network.layers,
        widths=widths_of(network),
        shape=shape,
        family_name=name,
        family=family,
        fixed=tuple(sorted((fixed or {}).items())),
    )


def batch_of(job: Job) -> int:
    """Sequences of one step of the job as it stands."""
    train, gpus = job.train, (job.hardware.gpus if job.hardware else None) or 1
    assert train is not None
    mesh = train.mesh
    inside = 1
    for axis in ("tp", "cp", "pp", "ulysses"):
        inside *= (getattr(mesh, axis) if mesh is not None else None) or 1
    accum = train.grad_accum or (train.pipeline.microbatches if train.pipeline is not None else None) or 1
    return (train.micro_batch or 1) * accum * max(gpus // inside, 1)
