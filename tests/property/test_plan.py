"""Laws of plans: no plan breaks a rule or exceeds the card, no point of the front is beaten, and more GPUs that do not help are named."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everybyte import estimate
from everybyte.basics.errors import BadInput
from everybyte.job import Job, job_to_dict, read_job
from everybyte.plan.front import coordinates, dominates, front
from everybyte.plan.layouts.as_job import Jobs
from everybyte.plan.layouts.asked import asked_for, read_fixed, read_gpus
from everybyte.plan.layouts.legal import space
from everybyte.plan.quick import quick
from everybyte.plan.whole import planned
from everybyte.plan.why import neighbours

FRAMEWORKS = ("megatron", "torchtitan", "deepspeed", "transformers")
MODELS = ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B")


def job_of(framework: str = "megatron", model: str = "meta-llama/Llama-3.1-8B", gpu: str = "a100-80gb", gpus: int = 8, **train: Any) -> Job:
    """A job whose layout is open."""
    stated = {"framework": framework, "micro_batch": 1, "seq_len": 4096, "grad_accum": 4, "optimizer": "adamw", **train}
    return read_job({"model": model, "hardware": {"gpu": gpu, "gpus": gpus, "gpus_per_node": 8}, "train": stated})


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(FRAMEWORKS), st.sampled_from(MODELS), st.sampled_from((1, 2, 8, 16)), st.booleans())
def test_no_plan_breaks_a_rule(framework: str, model: str, gpus: int, risk: bool) -> None:
    """Axes multiply to the GPUs, the sequences of a step stay, and the upper end of the interval has room unless risk is taken."""
    result = planned(job_of(framework, model), (gpus,), top=3, risk=risk, global_batch=64)
    for plan in result.plans:
        one = plan.layout
        assert one.tp * one.cp * one.pp * one.dp == gpus == one.gpus
        assert one.dp * one.micro_batch * one.grad_accum == 64
        found = estimate(read_job(job_to_dict(plan.job)))
        assert found.fits
        assert max(rank.figures.get("peak.device.instant", rank.figures["peak.device"]) for rank in found.ranks) == plan.memory.peak_device
        assert risk or found.range.get("peak.device", (0, found.figures["peak.device"]))[1] <= plan.memory.capacity
    assert list(result.plans) == sorted(result.plans, key=lambda plan: plan.seconds)


def test_no_point_of_the_front_is_beaten() -> None:
    """No plan that was seen is better than a point of the front in one respect and as good in the others; the fastest plan is on it."""
    result = planned(job_of(), (16,), global_batch=64, price=2.0)
    points = result.front
    assert len(points) > 1
    assert not any(dominates(coordinates(one), coordinates(other)) for one in points for other in points)
    assert min(plan.seconds for plan in points) <= result.plans[0].seconds
    assert front([*points, *points]) == points


def test_more_gpus_are_faster_or_it_is_said() -> None:
    """Where the best step does not get faster with more GPUs, a note names both numbers."""
    result = planned(job_of(model="meta-llama/Llama-3.2-1B"), (8, 16, 32, 64), global_batch=64, price=2.0)
    best = [min(plan.seconds for plan in found.plans) for found in result.found]
    worse = sum(after >= before for before, after in pairwise(best))
    assert len(result.notes) == worse


def test_equal_questions_have_equal_answers() -> None:
    """A search is deterministic."""
    one, two = (planned(job_of(), (8,), global_batch=32).plans for _ in range(2))
    assert [plan.layout for plan in one] == [plan.layout for plan in two]
    assert len(one) > 1


def test_what_must_stay_stays() -> None:
    """Each plan has the values of --fix, and those of the job's precision and optimizer."""
    result = planned(job_of(precision="bf16-master"), (8,), fixed=read_fixed(("tp=2", "mb=1")), global_batch=32)
    assert result.plans
    for plan in result.plans:
        assert (plan.layout.tp, plan.layout.micro_batch) == (2, 1)
        assert plan.job.train is not None
        assert plan.job.train.precision == "bf16-master"


def test_uneven_stages_are_legal() -> None:
    """A number of layers without a useful divisor still has pipeline stages, the embedding and the loss counted as layers."""
    asked = asked_for(job_of(model="Qwen/Qwen3-235B-A22B", gpu="h100"), 64, global_batch=256)
    layouts = [one for one in space(asked).layouts if one.pp == 8]
    assert layouts
    job = Jobs(asked)(layouts[0])
    assert job.train is not None
    assert job.train.pipeline is not None
    assert isinstance(job.train.pipeline.layers, tuple)
    assert sum(job.train.pipeline.layers) == asked.layers


def test_the_search_rejects_nothing_that_fits() -> None:
    """What the search leaves out after asking a leaner layout does not fit when it is asked itself."""
    result = planned(job_of(model="meta-llama/Llama-3.1-8B", gpu="a100-40gb"), (8,), global_batch=32, complete=True)
    (found,) = result.found
    kept = {plan.layout for plan in found.seen}
    jobs = Jobs(found.asked)
    left = [layout for _, layout in found.candidates if layout not in kept]
    assert left
    for layout in left[:: max(len(left) // 60, 1)]:
        try:
            memory = quick(jobs(layout))
        except BadInput:
            continue
        assert not memory.fits or found.memory.verified(layout) is None, layout


def test_quick_agrees_with_the_estimate() -> None:
    """peak.allocated and the time of a step are the same; peak.device lies within what replays of the allocator add."""
    job = job_of("torchtitan")
    fast, whole = quick(job, times=True), estimate(job)
    assert fast.step_s == whole.figures["step.time_s"]
    assert quick(job).step_s is None
    assert fast.peak_allocated == whole.figures["peak.allocated"]
    assert fast.rank == whole.worst.label
    assert fast.phase == whole.worst.peak_phase
    assert fast.host == whole.figures.get("host.bytes", 0)
    assert abs(fast.peak_device / whole.figures["peak.device"] - 1) < 0.1


def test_neighbours_differ_in_what_they_say() -> None:
    """A neighbour of a plan has another value of its choice and says how much slower and larger it is."""
    result = planned(job_of(), (16,), global_batch=64)
    plan = result.plans[0]
    found = neighbours(result.found[0], plan)
    assert found
    assert all(one.slower >= 0 or not one.fits or one.refused for one in found if one.choice == "micro_batch")
    assert all("slower" in one.words or "faster" in one.words for one in found)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: read_gpus("64,x"), "--gpus: 'x' is no number"),
        (lambda: read_gpus("0"), "--gpus: '0' is no number"),
        (lambda: read_fixed(("tpp=8",)), "--fix: a plan does not choose 'tpp'"),
        (lambda: read_fixed(("tp",)), "--fix: 'tp' names no value"),
        (lambda: read_fixed(("tp=two",)), "--fix: tp is a whole number"),
        (lambda: planned(job_of(), (12,)), "--gpus: 12 GPUs are not whole nodes of 8"),
        (lambda: planned(job_of(), (8,), fixed=(("tp", "7"),)), "plan: no layout of 8 GPUs is legal with tp=7"),
    ],
)
def test_impossible_questions_get_one_message(call: Any, message: str) -> None:
    """An impossible cluster or choice is refused with its place."""
    with pytest.raises(BadInput) as refused:
        call()
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("gpu", "train", "wanted"),
    [
        ("h100", {}, {"bf16-master", "fp8"}),
        ("h100", {"precision": "bf16-master"}, {""}),
        ("a100-80gb", {}, {""}),
        ("h100", {"framework": "trl"}, {""}),
    ],
)
def test_precision_is_open_where_job_card_and_framework_leave_it_so(gpu: str, train: dict[str, Any], wanted: set[str]) -> None:
    """fp8 is compared where the job says nothing and the card is quicker with it; what the job says stays."""
    asked = asked_for(job_of(gpu=gpu, **train), 8, global_batch=64)
    assert {layout.precision for layout in space(asked).layouts} == wanted


def test_plans_in_fp8_are_jobs_in_fp8() -> None:
    """The fastest plan of an open job on H100 runs its products in fp8, and its job says so; each precision has plans of its own."""
    found = planned(job_of(gpu="h100"), (8,), fixed=(("tp", "4"),), top=20, global_batch=64)
    best = found.plans[0]
    assert best.layout.precision == "fp8"
    assert best.job.train is not None
    assert best.job.train.precision == "fp8"
    assert any(plan.layout.precision == "bf16-master" for plan in found.plans)
    fixed = planned(job_of(gpu="h100"), (8,), fixed=(("precision", "bf16-master"), ("tp", "4")), top=3, global_batch=64)
    assert {plan.layout.precision for plan in fixed.plans} == {"bf16-master"}
