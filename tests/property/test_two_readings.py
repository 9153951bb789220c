"""The ledger reads the program of a step with its loops closed, the allocator plays it tensor by tensor: both come to the same peak whatever is trained."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, reject, settings
from small_jobs import trainings
from test_totals_of_layouts import layouts

from everybyte.basics.allocations import peak_living
from everybyte.basics.errors import BadInput, EverybyteError
from everybyte.estimator import accounted
from everybyte.job import read_job
from everybyte.models.count import tensors

some = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
SHARE = 1e-3
"""Of the peak."""
BLOCK = 512
"""Bytes by which a tensor of the states or gradients may be rounded in one of the two counts alone, which is much in models as small as these."""


def known(job: dict[str, Any]) -> bool:
    """Where the two are known to differ by some per cent in such small models: DeepSpeed's flat tensors and buckets, which the rows count in blocks, and its
    step, of which the rows have the highest instant; torchtitan's pipelines, whose last micro-batch shares whole gradients: the rows are those of one before
    it, which is as high but for the share of one unit."""
    train = job["train"]
    has_stages = train["framework"] == "torchtitan" and train.get("mesh", {}).get("pp", 1) > 1
    return has_stages or str(train.get("sharding")).startswith("zero")


def agree(job: dict[str, Any]) -> None:
    """Asserts that both come to the same, for every rank type."""
    network, _, found = accounted(read_job(job))
    rounded = BLOCK * len(tensors(network))
    for rank in found.ranks:
        ledger = max(rank.bill.totals().values())
        assert abs(peak_living(rank.bill.script()) - ledger) <= max(SHARE * ledger, rounded), rank.label


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
    """DDP, FSDP1, FSDP2, torchtitan, Megatron with pipelines and Megatron-FSDP; all but the kind of `known`."""
    try:
        accounted(read_job(job))
    except BadInput:
        reject()
    if not known(job):
        agree(job)
