"""What a pipeline stage is sent needs a gradient, as what its own layers make does."""

from __future__ import annotations

from everybyte.estimator import accounted
from everybyte.job import read_job
from everybyte.rules.step.training import Training


def test_a_stage_sends_the_gradient_of_its_input_back() -> None:
    """torch.distributed.pipelining makes received tensors require a gradient: the first layer of a later stage costs what its others do; token ids of
    the first stage have none."""
    job = read_job(
        {
            "model": "meta-llama/Meta-Llama-3.1-8B",
            "hardware": {"gpu": "h100-80gb", "gpus": 8},
            "train": {"framework": "torchtitan", "micro_batch": 1, "seq_len": 4096, "grad_accum": 8, "mesh": {"pp": 4}},
        }
    )
    first, *later = [rank.bill for rank in accounted(job)[2].ranks]
    assert isinstance(first, Training)
    assert first.timeline.row[0].tally.outgoing is None
    for bill in later:
        assert isinstance(bill, Training)
        assert all(segment.tally.outgoing is not None for segment in bill.timeline.row)
        assert bill.timeline.row[0].tally == bill.timeline.row[1].tally
