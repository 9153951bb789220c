"""What the package does, as functions for Python: the same answers as the commands, as objects. Public as `everybyte.fit`, `everybyte.compare` ..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everybyte.catalog.gpus import Gpu
    from everybyte.catalog.models import ModelRow
    from everybyte.job import Job
    from everybyte.ledger.answer import Answer, RankAnswer
    from everybyte.plan.fit import FitResult
    from everybyte.report.differences import Difference

    JobLike = Job | Mapping[str, Any] | str
    """A job, a mapping in the form of a job file, or the path of one."""


def fit(job: JobLike, key: str) -> FitResult:
    """The largest value of a whole-number setting that fits; with a leading minus (`-gpus`) the smallest.

    `key` is a key of the job such as `micro_batch`, `seq_len`, `context`, `train.mesh.tp`. The result has `value` (None where none fits), the `answer` at
    that value, and `stop`: why the next value does not do, with `short_by` in bytes. Raises BadInput for an unknown key and where the job names no GPU.

    >>> fit("examples/llama-3.1-8b-lora-24gb.yaml", "seq_len").value > 2048
    True
    """
    from everybyte.plan.fit import fit as search

    return search(_job(job), key)


def compare(a: JobLike | Answer, b: JobLike | Answer) -> list[Difference]:
    """Where the bytes of two jobs or answers differ, each at the peak of the rank type that needs most, the largest difference first.

    A row has `category`, `place`, and the bytes `here` (of a), `there` (of b) and `more` (here - there). Raises BadInput.
    """
    from everybyte.report.differences import differences

    return differences(_worst(a), _worst(b))


def models(words: str = "") -> Sequence[ModelRow]:
    """The models of the catalogue that match all words; all of them without one. Sizes are counts of parameters, None where nobody states them."""
    from everybyte.catalog.models import search_models

    return search_models(words)


def gpus(words: str = "") -> Sequence[Gpu]:
    """The GPUs of the catalogue that match all words. `capacity` is in bytes as torch sees it, rates are dense, bandwidth is in GB/s."""
    from everybyte.catalog.gpus import all_gpus
    from everybyte.catalog.search import matches

    return matches(all_gpus(), words.split(), lambda gpu: (gpu.name, *gpu.aliases, gpu.vendor, gpu.segment))


def _job(job: JobLike) -> Job:
    from everybyte.job import Job as Form
    from everybyte.job import read_job

    return job if isinstance(job, Form) else read_job(job if isinstance(job, str) else dict(job))


def _worst(thing: JobLike | Answer) -> RankAnswer:
    from everybyte.estimator import estimate
    from everybyte.ledger.answer import Answer

    return thing.worst if isinstance(thing, Answer) else estimate(_job(thing)).worst
