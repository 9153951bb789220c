"""A cause that something speaks for, and the closed list of causes."""

from __future__ import annotations

from collections.abc import Iterable

from everybyte.basics.record import Record

CAUSES = (
    "weights_too_large",
    "optimizer_states",
    "activations",
    "attention_scores",
    "logits",
    "kv_cache",
    "memory_fraction",
    "profiling_run",
    "cuda_graphs",
    "load_peak",
    "comm_buffers",
    "checkpoint_save",
    "evaluation_or_generation",
    "wrong_dtype_or_copy",
    "fragmentation",
    "leak",
    "other_process",
    "wrong_device",
    "imbalance",
    "host_memory",
    "limit",
    "driver_or_nccl",
    "not_memory",
    "unknown",
)


class Suspicion(Record, frozen=True):
    """How strongly something speaks for a cause, from 0 to 1."""

    cause: str
    confidence: float
    why: str


def ranked(found: Iterable[Suspicion]) -> tuple[Suspicion, ...]:
    """One suspicion a cause, the strongest first. Several signs for the same cause add up as independent ones do: 1 − Π(1 − p)."""
    doubt: dict[str, float] = {}
    reasons: dict[str, list[Suspicion]] = {}
    for one in found:
        doubt[one.cause] = doubt.get(one.cause, 1.0) * (1 - one.confidence)
        reasons.setdefault(one.cause, []).append(one)
    joined = [
        Suspicion(cause, round(1 - left, 2), "; ".join(dict.fromkeys(one.why for one in sorted(reasons[cause], key=lambda s: -s.confidence) if one.why)))
        for cause, left in doubt.items()
    ]
    return tuple(sorted(joined, key=lambda one: (-one.confidence, CAUSES.index(one.cause))))
