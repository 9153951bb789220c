"""The search for a layout: what it proposes is legal and fits, its front holds no beaten plan, and what it leaves out is counted."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everybyte
from everybyte.basics.errors import BadInput
from everybyte.estimator import estimate
from everybyte.job import Job, job_to_dict, read_job
from everybyte.models.source import network_of
from everybyte.plan.layouts.search import Found, front, search
from everybyte.plan.layouts.space import job_of, layouts
from everybyte.plan.time.shape import NetworkShape, shape_of

LLAMA = "meta-llama/Llama-3.1-8B"


def job(model: str = LLAMA, gpus: int = 8, **train: Any) -> Job:
    """A Megatron job that leaves its layout open."""
    base = {"framework": "megatron", "precision": "bf16-master", "seq_len": 4096}
    return read_job({"everybyte": 1, "model": model, "hardware": {"gpu": "H100-SXM5-80GB", "gpus": gpus, "gpus_per_node": 8}, "train": base | train})


@cache
def shape(model: str) -> NetworkShape:
    """The shape of a model of the catalogue."""
    found = shape_of(network_of(model, "model"))
    assert found is not None
    return found


@cache
def found(gpus: int, batch: int = 64, *, risk: bool = False) -> Found:
    """What the search says of Llama 8B."""
    return search(job(), (gpus,), batch, {}, 8, risk=risk)


@settings(max_examples=30, deadline=None)
@given(
    model=st.sampled_from([LLAMA, "Qwen/Qwen3-30B-A3B", "meta-llama/Llama-3.1-405B"]),
    gpus=st.sampled_from([8, 16, 24, 64, 256]),
    batch=st.sampled_from([48, 64, 256, 1024]),
)
def test_every_layout_is_legal(model: str, gpus: int, batch: int) -> None:
    """Ranks multiply to the cluster, sequences to the global batch, and stages hold every layer once."""
    whole = shape(model)
    for layout in layouts(job(model), whole, gpus, batch, {}):
        assert layout.tp * layout.pp * layout.cp * layout.dp == gpus
        assert layout.micro_batch * layout.grad_accum * layout.dp == batch
        assert layout.tp <= 8
        assert gpus % layout.ep == 0
        made = job_of(job(model), layout, gpus, whole.count)
        assert made.train is not None
        pipeline = made.train.pipeline
        if pipeline is not None and isinstance(pipeline.layers, tuple):
            assert sum(pipeline.layers) == whole.count
            assert min(pipeline.layers) >= 1


def test_what_is_proposed_fits_by_its_interval() -> None:
    """No plan's 90 % interval crosses the card, and its job is one that the ledger answers so again."""
    plans = found(8).plans
    assert plans
    for plan in plans:
        again = estimate(read_job(job_to_dict(plan.candidate.job)))
        assert again.verdict == "fits"
        assert again.headroom == plan.margin


def test_risk_shows_more() -> None:
    """With --risk layouts whose interval crosses the card come in, so that the best is no slower."""
    assert found(8, risk=True).plans[0].seconds <= found(8).plans[0].seconds


def test_plans_are_ranked_and_of_different_meshes() -> None:
    """From the fastest on, one line a mesh."""
    plans = found(16).plans
    assert [plan.seconds for plan in plans] == sorted(plan.seconds for plan in plans)
    assert len({plan.candidate.layout.mesh for plan in plans}) == len(plans)


def test_no_plan_of_the_front_is_beaten() -> None:
    """For any two plans of the front, each is better in something; the fastest is on it."""
    plans = found(16).plans
    best = front(plans)
    assert plans[0] in best
    for a in best:
        for b in plans:
            is_better = b.seconds < a.seconds and b.margin > a.margin
            assert not is_better


def test_more_gpus_are_no_slower() -> None:
    """The same global batch on twice the GPUs takes no longer."""
    assert found(16).plans[0].seconds <= found(8).plans[0].seconds


def test_the_answer_is_the_same_again() -> None:
    """The search has no chance in it."""
    first, second = (search(job(), (8,), 32, {}, 3) for _ in range(2))
    assert [plan.candidate.layout for plan in first.plans] == [plan.candidate.layout for plan in second.plans]
    assert first.rejected == second.rejected


def test_fixed_values_are_kept() -> None:
    """Only layouts with the fixed value come back."""
    plans = search(job(), (16,), 64, {"tp": 4, "recompute": "none"}, 5).plans
    assert plans
    assert all(plan.candidate.layout.tp == 4 and plan.candidate.layout.recompute == "none" for plan in plans)


def test_figures_of_a_plan_are_those_of_its_job() -> None:
    """A saved layout answers with the same time and memory."""
    plan = found(8).plans[0]
    again = everybyte.estimate(job_to_dict(plan.candidate.job))
    assert again.figures["step.time_s"] == pytest.approx(plan.answer.figures["step.time_s"])
    assert again.figures["peak.device"] == plan.answer.figures["peak.device"]


def test_a_model_that_fits_nowhere_names_the_nearest() -> None:
    """405B on 8 GPUs: no plan, the least short layout, and reasons with counts."""
    none = search(job("meta-llama/Llama-3.1-405B"), (8,), 8, {}, 3)
    assert none.plans == ()
    assert none.nearest is not None
    assert none.nearest.margin < 0
    assert sum(none.rejected.values()) == none.considered


@pytest.mark.parametrize(("gpus", "batch"), [(7, 5), (64, 3)])
def test_an_impossible_cluster_is_refused(gpus: int, batch: int) -> None:
    """A global batch that no layout divides is named with the way out."""
    with pytest.raises(BadInput, match="global batch") as refused:
        search(job(), (gpus,), batch, {"dp": gpus}, 3)
    assert refused.value.path == "--gpus"
