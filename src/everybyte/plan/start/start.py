"""The job that a person means who names a model, a GPU and little else."""

from __future__ import annotations

from typing import Any, NamedTuple

from everybyte.basics.errors import BadInput
from everybyte.basics.origin import inferred
from everybyte.job import Job, job_to_dict
from everybyte.job.pattern import model_of
from everybyte.layers.network import Network
from everybyte.models.source import network_of
from everybyte.plan.start.choose import engines, first_answered, frameworks
from everybyte.plan.start.kinds import is_image
from everybyte.plan.start.layout import laid_out
from everybyte.plan.start.points import points_of
from everybyte.plan.start.taken import Taken, states, with_settings


class Started(NamedTuple):
    """A job with its open settings filled in, and the origin of each that was taken."""

    job: Job
    taken: Taken


def started(job: Job) -> Started:
    """Framework or engine, the settings of its official example, and a layout over several GPUs, wherever the job leaves them open.

    Raises BadInput for a job that nobody answers.
    """
    network = network_of(model_of(job), "model")
    taken: dict[str, str] = {}
    key, candidates = ("train.framework", frameworks) if job.train is not None else ("serve.engine", engines)
    if not states(job_to_dict(job), key):
        job, taken[key] = first_answered(job, key, candidates(job_to_dict(job), network), lambda named: _filled(named, network))
    job, more = _exemplary(job, network)
    job, layout = laid_out(job)
    return Started(job, {**taken, **more, **layout})


def _filled(job: Job, network: Network) -> Job:
    """The job as its framework or engine gets it: an example's settings in training, a layout in serving."""
    return _exemplary(job, network)[0] if job.train is not None else laid_out(job)[0]


def _exemplary(job: Job, network: Network) -> tuple[Job, Taken]:
    """The job with the settings of its framework's example, where it is silent."""
    if job.train is None:
        return job, {}
    raw = job_to_dict(job)
    point = points_of(job.train.framework or "pytorch", {"adapter": job.train.adapter is not None, "image": is_image(network)})
    if point is None:
        return job, {}
    settings = {path: value for path, value in point.set.items() if not _is_settled(raw, path)}
    taken = dict.fromkeys(settings, point.origin)
    if not _is_settled(raw, "train.seq_len") and 0 < network.max_positions < settings.get("train.seq_len", SHORTEST_DEFAULT):
        settings["train.seq_len"], taken["train.seq_len"] = network.max_positions, inferred("positions of the model")
    return _without_refused(job, settings, taken)


SHORTEST_DEFAULT = 1024
"""No framework's own length of sequences is shorter; a model with fewer positions gets those."""

RIVALS: dict[str, tuple[str, ...]] = {
    "train.micro_batch": ("train.tokens",),
    "train.seq_len": ("train.tokens",),
    "train.dtypes.weights": ("train.precision",),
    "train.precision": ("train.dtypes",),
    "train.grad_accum": ("train.pipeline.microbatches",),
}
"""Keys that say what another one would."""


def _is_settled(raw: dict[str, Any], path: str) -> bool:
    return states(raw, path) or any(states(raw, rival) for rival in RIVALS.get(path, ()))


def _without_refused(job: Job, settings: dict[str, Any], taken: dict[str, str]) -> tuple[Job, Taken]:
    """The settings of the example that this job can have: what it cannot is left to the framework, one by one."""
    from everybyte.estimator import accounted

    left = dict(settings)
    while left:
        candidate = with_settings(job, left)
        try:
            accounted(candidate)
        except BadInput as refused:
            guilty = next((path for path in left if refused.path.startswith(path) or path.startswith(refused.path)), None)
            if guilty is None:
                return candidate, {path: taken[path] for path in left}
            del left[guilty]
            continue
        return candidate, {path: taken[path] for path in left}
    return job, {}
