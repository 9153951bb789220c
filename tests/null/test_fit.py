"""The search for the largest or smallest value, against made-up memory rules whose answer is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from made_answers import answer, rank

from everybyte.basics.errors import BadInput
from everybyte.estimator import estimate, runs_over
from everybyte.job import Job, read_job
from everybyte.ledger.answer import Answer
from everybyte.plan.fit import fit
from everybyte.plan.keys import resolve_key, with_value
from everybyte.plan.limits import LARGEST, LARGEST_GPUS

BASE = rank().figures["peak.device"]


def job(**keys) -> Job:
    return read_job({"model": "m", "hardware": {"gpu": "a", "gpus": 8}, "train": {"micro_batch": 4, **keys}})


def estimator(fits: Callable[[int, int], bool], multiple: int = 1) -> Callable[[Job], Answer]:
    """Answers by a rule over micro_batch and gpus; micro-batches that are no multiple are refused, as by a divisibility rule of an engine."""

    def estimate(asked: Job) -> Answer:
        assert asked.train is not None
        assert asked.hardware is not None
        micro_batch, gpus = asked.train.micro_batch or 1, asked.hardware.gpus or 1
        if micro_batch % multiple:
            raise BadInput("train.micro_batch", f"must be a multiple of {multiple}")
        return answer(capacity=BASE + (10 if fits(micro_batch, gpus) else -1000))

    return estimate


@pytest.mark.parametrize("border", [1, 2, 3, 4, 5, 7, 63, 64, 65, 1000, 123_457])
def test_the_largest_value_is_exact(border: int) -> None:
    """With monotone memory the border is found to the unit, and the value after it is shown to fail with its shortage."""
    result = fit(job(), "micro_batch", estimator(lambda b, _: b <= border))
    assert result.value == border
    assert result.stop is not None
    assert result.stop.value == border + 1
    assert result.stop.short_by == 1000
    assert (result.stop.rank, result.stop.phase) == ("gpu 0", "backward")
    assert result.holes == ()


def test_nothing_fits() -> None:
    """When not even the smallest value fits, there is no value, and what stops it is said."""
    result = fit(job(), "micro_batch", estimator(lambda *_: False))
    assert result.value is None
    assert result.stop is not None
    assert result.stop.short_by == 1000


def test_everything_fits() -> None:
    """A setting that memory does not depend on ends at the largest value tried, and is called unlimited."""
    result = fit(job(), "grad_accum", estimator(lambda *_: True))
    assert (result.value, result.unlimited, result.stop) == (LARGEST, True, None)


@pytest.mark.parametrize("multiple", [2, 8, 64])
def test_refused_values_are_stepped_over(multiple: int) -> None:
    """Where only multiples are allowed the largest multiple is found, although plain bisection meets refusals nearly everywhere."""
    result = fit(job(), "micro_batch", estimator(lambda b, _: b <= 1000, multiple))
    assert result.value == 1000 // multiple * multiple


def test_memory_that_is_not_monotone() -> None:
    """A value beyond the first border that fits is found, and the gap below it is reported."""
    result = fit(job(), "micro_batch", estimator(lambda b, _: b <= 100 or (b % 64 == 0 and b <= 128)))
    assert result.value == 128
    assert result.holes
    assert all(100 < hole < 128 for hole in result.holes)


@pytest.mark.parametrize(("needed", "expected"), [(1, 2), (2, 2), (3, 4), (31, 32), (77, 78), (1001, 1002)])
def test_the_fewest_gpus(needed: int, expected: int) -> None:
    """The smallest count is a multiple of the fixed mesh axes, exact also far beyond the start."""
    result = fit(job(mesh={"tp": 2}), "-gpus", estimator(lambda _, gpus: gpus >= needed))
    assert result.value == expected
    assert result.smallest


def test_no_count_of_gpus_is_enough() -> None:
    """The search for GPUs ends."""
    result = fit(job(), "-gpus", estimator(lambda *_: False))
    assert result.value is None
    assert result.tried < 100
    assert LARGEST_GPUS >= 100_000


def test_growing_gpus_leaves_data_parallel_open() -> None:
    """A stated data-parallel size does not stand in the way of another number of GPUs."""
    changed = with_value(job(mesh={"tp": 2, "dp_shard": 4}), "hardware.gpus", 6)
    assert changed.train is not None
    assert changed.train.mesh is not None
    assert (changed.train.mesh.tp, changed.train.mesh.dp_shard) == (2, None)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("micro_batch", "train.micro_batch"),
        ("adapter.rank", "train.adapter.rank"),
        ("train.seq_len", "train.seq_len"),
        ("gpus", "hardware.gpus"),
        ("tp", "train.mesh.tp"),
    ],
)
def test_keys_by_their_short_names(name: str, path: str) -> None:
    """A setting is found by the end of its path."""
    assert resolve_key(job(), name) == path


@pytest.mark.parametrize(
    ("name", "words"), [("micro_bach", "did you mean micro_batch"), ("rank", "train.optimizer.rank or train.adapter.rank"), ("context", "no whole-number")]
)
def test_unknown_and_ambiguous_keys(name: str, words: str) -> None:
    """What is no setting of this kind of job, or of several, is refused with the candidates."""
    with pytest.raises(BadInput, match=words):
        resolve_key(job(), name)


def test_a_job_without_gpu_and_a_job_that_is_always_refused() -> None:
    """Without a GPU nothing can fit; a job that is wrong at every value is refused with its own message."""
    with pytest.raises(BadInput, match=r"hardware\.gpu"):
        fit(read_job({"model": "m", "train": {}}), "micro_batch", estimator(lambda *_: True))
    with pytest.raises(BadInput, match="multiple of 1000003"):
        fit(job(), "micro_batch", estimator(lambda *_: True, 1_000_003))


@pytest.mark.parametrize(
    ("gpu", "key", "alloc_conf"),
    [("rtx-4090", "micro_batch", ""), ("a100-80gb", "seq_len", "expandable_segments:True"), ("a100-80gb", "micro_batch", "per_process_memory_fraction:0.5")],
)
def test_a_quick_no_changes_nothing(gpu: str, key: str, alloc_conf: str) -> None:
    """Values whose tensors alone are more than the card has are not replayed: the largest that fits, what was tried, and why the next does not do are the
    same as with a full answer for each."""
    job = read_job(
        {
            "model": "Qwen/Qwen3-0.6B",
            "hardware": {"gpu": gpu},
            "env": {"alloc_conf": alloc_conf},
            "train": {"framework": "transformers", "micro_batch": 1, "seq_len": 1024, "precision": "bf16"},
        }
    )
    asked: list[Job] = []

    def full(job: Job) -> Answer:
        asked.append(job)
        return estimate(job)

    found = fit(job, key)
    assert found == fit(job, key, full)
    assert found.value is not None
    assert sum(runs_over(each) for each in asked) > 3
    assert not any(runs_over(each) and estimate(each).fits for each in asked)
