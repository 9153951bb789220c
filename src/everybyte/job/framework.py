"""Whose code runs a training step: the one place that knows how older job files say it."""

from __future__ import annotations

from typing import Any, Literal, cast

from msgspec.structs import replace

from everybyte.job.extra import Section, section
from everybyte.job.form import Job, Train
from everybyte.job.words import Framework

OWN = ("prime-rl", "xtuner", "nemo-automodel", "ms-swift")
"""Frameworks that older job files name in `train.extra.framework`, beside the framework that they build on."""
SEVERAL = "ms-swift"
"""The one that runs the steps of several others."""

Trainer = Literal["pytorch", "transformers", "trl", "megatron"]


class TrainerKeys(Section, frozen=True, kw_only=True):
    """Whose trainer runs the step, for a framework that has several."""

    trainer: Trainer | None = None


def with_own_framework(job: Job) -> Job:
    """The same job with its framework in `train.framework`, and where that runs the trainers of several others, which one in `train.extra.trainer`."""
    train = job.train
    if train is None or not train.extra:
        return job
    named = train.extra.get("framework")
    if named not in OWN:
        return job
    extra: dict[str, Any] = {key: value for key, value in train.extra.items() if key != "framework"}
    if named == SEVERAL:
        extra["trainer"] = train.framework or "pytorch"
    return replace(job, train=replace(train, framework=cast("Framework", named), extra=extra or None))


def trainer_of(train: Train) -> str:
    """The framework whose step runs: that of the job, or the one that it calls."""
    if train.framework != SEVERAL:
        return train.framework or "pytorch"
    return section(train.extra, TrainerKeys).trainer or ("megatron" if _is_divided(train) else "transformers")


def _is_divided(train: Train) -> bool:
    """Whether a job asks for what Megatron alone has of the several: layers or experts that are divided, its distributed optimizer."""
    mesh = train.mesh
    axes = () if mesh is None else (mesh.tp, mesh.pp, mesh.ep, mesh.etp, mesh.cp)
    return any((size or 1) > 1 for size in axes) or train.sharding in ("distributed-optimizer", "megatron-fsdp")
