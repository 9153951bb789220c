"""The order of a rank's passes against the schedules of torch.distributed.pipelining, called without ranks or stages."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
from torch.distributed.pipelining import schedules

from everybyte.rules.parallel.schedule_orders import order
from everybyte.rules.parallel.schedules import Plan

Made = list[tuple[str, int, int]]
"""(kind, stage, micro-batch) of each pass of a rank."""
ROUNDS = [(pp, virtual, m) for pp, virtual, m in product((2, 3, 4), (2, 3), (2, 4, 6, 8, 12)) if m % max(m // pp, 1) == 0]


def torch_passes(class_name: str, pp: int, virtual: int, microbatches: int, rank: int) -> Made:
    """The passes that torch's schedule computes for a rank, its pairs taken apart."""
    kind: Any = getattr(schedules, class_name)
    schedule = kind.__new__(kind)
    schedule.pp_group_size, schedule._n_microbatches, schedule.n_local_stages = pp, microbatches, virtual
    schedule.num_stages, schedule._num_stages = pp * virtual, pp * virtual
    schedule.microbatches_per_round = microbatches // max(microbatches // pp, 1)
    actions = schedule._calculate_single_rank_operations(rank)
    return computed(part for action in actions if action is not None for part in (action.sub_actions or (action,)))


def computed(actions: Iterable[Any]) -> Made:
    """Actions that compute, without gaps and communication."""
    made = [(action.computation_type.value, action.stage_index, action.microbatch_index) for action in actions if action is not None]
    return [step for step in made if step[0] in "FBIW"]


def our_passes(plan: Plan, rank: int, folded: bool = False) -> Made:
    """The passes of `order`, chunks named by their stages."""
    stages = (rank, 2 * plan.pp - 1 - rank) if folded else tuple(rank + plan.pp * chunk for chunk in range(plan.virtual))
    return [(step.kind, stages[step.chunk], step.microbatch) for step in order(plan, rank)]


@pytest.mark.parametrize(("pp", "virtual", "microbatches"), ROUNDS)
def test_interleaved_is_torchs(pp: int, virtual: int, microbatches: int) -> None:
    """Interleaved 1F1B runs the passes of every rank in torch's order."""
    plan = Plan("interleaved", pp, virtual, microbatches, microbatches // max(microbatches // pp, 1))
    for rank in range(pp):
        assert our_passes(plan, rank) == torch_passes("ScheduleInterleaved1F1B", pp, virtual, microbatches, rank)


@pytest.mark.parametrize(("pp", "virtual", "microbatches"), [(pp, 1, m) for pp in (2, 3, 4, 8) for m in (2 * pp, 3 * pp)] + ROUNDS)
def test_zb_h1_is_torchs_zb1p(pp: int, virtual: int, microbatches: int) -> None:
    """ZB-H1 runs the passes of every rank in the order of torch's InterleavedZeroBubble, with one chunk a rank or several."""
    plan = Plan("zb-h1", pp, virtual, microbatches, microbatches // max(microbatches // pp, 1))
    for rank in range(pp):
        assert our_passes(plan, rank) == torch_passes("ScheduleInterleavedZeroBubble", pp, virtual, microbatches, rank)


@pytest.mark.parametrize(("pp", "microbatches"), list(product((1, 2, 3, 4, 8), (1, 3, 8, 16, 21))))
def test_zb_v_is_torchs(pp: int, microbatches: int) -> None:
    """ZBV runs the passes of every rank in torch's order, with fewer micro-batches than fill the pipeline as well."""
    for rank in range(pp):
        assert our_passes(Plan("zb-v", pp, 2, microbatches, pp), rank, True) == torch_passes("ScheduleZBVZeroBubble", pp, 2, microbatches, rank)


@pytest.mark.parametrize(("pp", "microbatches"), [(pp, m) for pp in (1, 2, 3, 4, 8) for m in (2 * pp, 2 * pp + 1, 4 * pp)])
def test_dualpipe_v_is_torchs(pp: int, microbatches: int) -> None:
    """DualPipeV runs the passes of every rank in torch's order."""
    for rank in range(pp):
        assert our_passes(Plan("dualpipe-v", pp, 2, microbatches, pp), rank, True) == torch_passes("ScheduleDualPipeV", pp, 2, microbatches, rank)


@pytest.mark.parametrize(("name", "class_name"), [("1f1b", "Schedule1F1B"), ("gpipe", "ScheduleGPipe")])
def test_single_stages_are_torchs(name: Any, class_name: str) -> None:
    """1F1B and GPipe run the kinds of pass in torch's order (whose table numbers the last rank's micro-batches of 1F1B from 1)."""
    kind: Any = getattr(schedules, class_name)
    for pp, microbatches in product((2, 4), (4, 8)):
        schedule = kind.__new__(kind)
        schedule.pp_group_size, schedule._n_microbatches, schedule._num_stages = pp, microbatches, pp
        for rank, actions in schedule._get_pipeline_order().items():
            assert [step[0] for step in our_passes(Plan(name, pp, 1, microbatches, pp), rank)] == [step[0] for step in computed(actions)]
