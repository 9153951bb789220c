"""A step is written once in sums, for the ledger, and once in program order, for the allocator: both come to the same peak whatever is trained."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, reject, settings
from small_jobs import trainings
from test_totals_of_layouts import layouts

from everybyte.basics.allocations import peak_living
from everybyte.basics.errors import BadInput, EverybyteError
from everybyte.estimator import accounted
from everybyte.job import read_job

some = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
SHARE = 1e-3
"""Of the peak: one of the two counts states and gradients in blocks of 512 bytes, which is much in models as small as these."""


def known(job: dict[str, Any]) -> bool:
    """Where the two are known to differ by up to some per cent in such small models: gathered layers of Megatron-FSDP, experts under FSDP2, torchtitan's
    pipelines, DeepSpeed's buckets (the sums have the highest instant of several, the program one order)."""
    train = job["train"]
    sharding = str(train.get("sharding"))
    has_experts = "experts" in job["model"]["shape"] and sharding in ("fsdp2", "fsdp2-no-reshard", "hsdp")
    return sharding == "megatron-fsdp" or sharding.startswith("zero") or train["framework"] == "torchtitan" or has_experts


def agree(job: dict[str, Any]) -> None:
    """Asserts that both come to the same, for every rank type."""
    for rank in accounted(read_job(job))[2].ranks:
        ledger = max(rank.bill.totals().values())
        assert abs(peak_living(rank.bill.script()) - ledger) <= SHARE * ledger, rank.label


@given(trainings())
@some
def test_on_one_gpu(job: dict[str, Any]) -> None:
    """Hugging Face, torchtune, LitGPT and nanoGPT, with adapters and packed weights, recomputed or not."""
    try:
        agree(job)
    except EverybyteError:
        reject()


@given(layouts())
@some
def test_on_several(job: dict[str, Any]) -> None:
    """DDP, FSDP1, FSDP2 and Megatron with pipelines; all but the kinds of `known`."""
    try:
        accounted(read_job(job))
    except BadInput:
        reject()
    if not known(job):
        agree(job)
