"""Which one setting most likely differs from what was measured: one key of the job is changed at a time, and the estimate is compared again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

from everybyte.basics.errors import EverybyteError
from everybyte.basics.record import Record
from everybyte.estimator import estimate
from everybyte.job import Job, job_to_dict, read_job, words
from everybyte.ledger.answer import Answer
from everybyte.measure.comparing.rows import compared
from everybyte.measure.comparing.side import Side, side_of_rank
from everybyte.plan.start.taken import put

WORDS: dict[str, tuple[Any, ...]] = {
    "train.recompute": get_args(words.RecomputePolicy),
    "train.precision": get_args(words.Precision),
    "train.optimizer": ("adamw", "sgd", "sgd-momentum", "adafactor", "lion", "adamw-8bit", "adagrad", "rmsprop"),
    "train.attention": get_args(words.TrainAttention),
    "train.loss": get_args(words.LossKind),
    "train.sharding": get_args(words.Sharding),
    "train.zero_grad_set_to_none": (True, False),
    "train.compile": (True, False),
    "train.kernels": ([], ["liger"]),
    "train.dropout": (0.0, 0.1),
    "train.grad_accum": (1, 2),
    "train.dtypes.grads": ("bf16", "fp32"),
    "train.offload.optimizer": ("cpu",),
    "train.offload.activations": ("cpu",),
    "train.adapter": ({"kind": "lora", "rank": 16, "targets": "all-linear"},),
    "train.quantization": ({"format": "nf4"}, {"format": "int8"}),
    "serve.weights": ("bf16", "fp16", "fp8", "int8", "awq"),
    "serve.kv_dtype": ("auto", "bf16", "fp8"),
    "serve.cuda_graphs": (True, False),
    "serve.memory_fraction": (0.8, 0.85, 0.9, 0.95),
}
"""Settings that take words, and what each may be."""
SIZES = (
    "train.micro_batch",
    "train.seq_len",
    "train.adapter.rank",
    "serve.context",
    "serve.sequences",
    "serve.batched_tokens",
    "serve.ubatch",
    "serve.mesh.tp",
)
"""Settings that are sizes: they are tried FACTORS times as large."""
FACTORS = (0.25, 0.5, 2, 4)
LEAST_GAIN = 0.25
"""Of the difference: a change that removes less is no suspect."""
MOST = 3
NEAR = 1.02
"""Changes whose rest is within so much of the best one's cannot be told from it."""


class Suspect(Record, frozen=True):
    """A setting that, changed, brings the estimate nearer to the other side."""

    key: str
    value: Any
    before: Any
    """What the job says or its default; None where neither is known."""
    distance: int
    """Bytes in which rows then differ, added up."""
    explains: float
    """The share of the difference that is gone, from 0 to 1."""


def suspects(job: Job, answer: Answer, there: Side, tell: Callable[[int, int], None] | None = None) -> tuple[Suspect, ...]:
    """The settings that explain the difference best, best first; empty where none explains a quarter of it. `tell` hears how many of
    how many changes were tried.

    Where the other side has a job, its differing keys are tried; else the keys of WORDS and SIZES that the job's kind has.
    """
    before = compared(side_of_rank(answer, answer.worst), there).distance
    if not before:
        return ()
    changes = list(_differing(job, there.job) if there.job is not None else _usual(job, answer))
    found = []
    for done, (key, value) in enumerate(changes):
        if tell is not None:
            tell(done, len(changes))
        distance = _distance(job, key, value, there)
        if distance is not None and before - distance >= LEAST_GAIN * before:
            found.append(Suspect(key, value, _stated(answer, key), distance, 1 - distance / before))
    found.sort(key=lambda one: one.distance)
    return tuple(_one_a_key(found))[:MOST]


def is_certain(found: tuple[Suspect, ...]) -> bool:
    """Whether the first suspect stands out from the second."""
    return bool(found) and (len(found) == 1 or found[1].distance > NEAR * found[0].distance)


def _distance(job: Job, key: str, value: Any, there: Side) -> int | None:
    """How far the changed job is from the other side; None where the change contradicts the job or is not modelled."""
    raw = job_to_dict(job)
    try:
        put(raw, key, value)
        answer = estimate(read_job(raw))
    except (EverybyteError, TypeError):  # a section that is a word cannot hold a key
        return None
    return compared(side_of_rank(answer, answer.worst), there).distance


def _usual(job: Job, answer: Answer) -> Iterator[tuple[str, Any]]:
    """Changes of one key to what it usually is else."""
    purpose = "train." if job.train is not None else "serve."
    raw = job_to_dict(job)
    for key, values in WORDS.items():
        if key.startswith(purpose):
            yield from ((key, value) for value in values if value != _stated(answer, key))
    for section in ("adapter", "quantization"):
        if raw.get("train", {}).get(section):
            yield f"train.{section}", None
    for key in SIZES:
        size = _stated(answer, key)
        if key.startswith(purpose) and isinstance(size, int):
            yield from ((key, max(round(size * factor), 1)) for factor in FACTORS if max(round(size * factor), 1) != size)


def _differing(job: Job, other: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys in which two jobs differ, with the other one's value."""
    mine, theirs = _flat(job_to_dict(job)), _flat(job_to_dict(read_job(dict(other))))
    for key in dict.fromkeys([*mine, *theirs]):
        if mine.get(key) != theirs.get(key) and key not in ("name", "everybyte"):
            yield key, theirs.get(key)


def _flat(raw: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Key paths of the sections and of what lies in them; the model stays whole."""
    found: dict[str, Any] = {}
    for key, value in raw.items():
        full = f"{path}.{key}" if path else key
        if isinstance(value, Mapping) and key != "model":
            found.update(_flat(value, full))
        else:
            found[full] = value
    return found


def _stated(answer: Answer, key: str) -> Any:
    """The value of a key in the answered job, defaults included."""
    value: Any = answer.job
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None:
        value = next((setting.value for setting in answer.settings if setting.key == key), None)
    return value.get("name", value.get("policy", value.get("kind"))) if isinstance(value, Mapping) else value


def _one_a_key(found: list[Suspect]) -> Iterator[Suspect]:
    """The best change of each key."""
    seen: set[str] = set()
    for one in found:
        if one.key not in seen:
            seen.add(one.key)
            yield one
