"""Pipeline schedules against a small simulation of ranks that wait for one another, and against the tables of the papers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everybyte.job.words import Schedule
from everybyte.rules.parallel.pipeline import flights, in_flight
from everybyte.rules.parallel.schedule_orders import Pass, order
from everybyte.rules.parallel.schedules import Plan

LENGTHS = {"F": 1, "B": 2, "I": 1, "W": 1}
"""Time of a pass. The halves of a backward pass are as long as a forward pass, as the zero-bubble paper draws them."""
EXAMPLES = [
    Plan("gpipe", 4, 1, 8, 4),
    Plan("1f1b", 4, 1, 8, 4),
    Plan("1f1b", 4, 1, 2, 4),
    Plan("1f1b", 8, 1, 8, 8),
    Plan("interleaved", 4, 2, 8, 4),
    Plan("interleaved", 4, 3, 5, 5),
    Plan("interleaved", 2, 4, 9, 5),
    Plan("interleaved", 3, 2, 3, 3),
    Plan("zb-h1", 4, 1, 8, 4),
    Plan("zb-h1", 4, 1, 2, 4),
    Plan("zb-h1", 4, 2, 8, 4),
    Plan("zb-h2", 4, 1, 12, 4),
    Plan("zb-h2", 4, 1, 3, 4),
    Plan("zb-v", 4, 2, 12, 4),
    Plan("zb-v", 4, 2, 3, 4),
    Plan("dualpipe", 4, 1, 8, 4),
    Plan("dualpipe", 8, 1, 20, 8),
    Plan("dualpipe-v", 4, 2, 10, 4),
    Plan("dualpipe-v", 1, 2, 4, 1),
]


class Run(NamedTuple):
    """What the simulation saw: per rank the span from its first to its last pass, its idle time in between, and the most micro-batches alive."""

    spans: list[int]
    idle: list[int]
    alive: list[int]
    times: dict[tuple[int, Pass], tuple[int, int]]
    """(rank, pass) -> (begin, end)."""


def stage_of(plan: Plan, rank: int, chunk: int) -> tuple[int, int]:
    """(direction, stage in the order of the model) of a chunk."""
    if plan.schedule == "dualpipe":
        return (0, rank) if chunk == 0 else (1, plan.pp - 1 - rank)
    if plan.schedule in ("zb-v", "dualpipe-v"):
        return 0, rank if chunk == 0 else 2 * plan.pp - 1 - rank
    return 0, chunk * plan.pp + rank


def simulate(plan: Plan) -> Run:
    """Runs all ranks, each in its own order: a pass begins when the rank is free and what it waits for has arrived. Fails on a deadlock."""
    stages = plan.pp if plan.schedule == "dualpipe" else plan.pp * plan.virtual
    todo = [list(order(plan, rank)) for rank in range(plan.pp)]
    done: dict[tuple[str, int, int, int], int] = {}
    free, idle, begun, alive, most = ([0] * plan.pp for _ in range(5))
    times: dict[tuple[int, Pass], tuple[int, int]] = {}
    place = [0] * plan.pp
    while any(place[rank] < len(todo[rank]) for rank in range(plan.pp)):
        moved = False
        for rank in range(plan.pp):
            while place[rank] < len(todo[rank]):
                step = todo[rank][place[rank]]
                direction, stage = stage_of(plan, rank, step.chunk)
                needs = [key for key in waits_for(step, direction, stage, stages) if key not in done]
                if needs:
                    break
                ready = max((done[key] for key in waits_for(step, direction, stage, stages)), default=0)
                start = max(free[rank], ready)
                if place[rank]:
                    idle[rank] += start - free[rank]
                else:
                    begun[rank] = start
                free[rank] = start + LENGTHS[step.kind]
                for kind in {"F": "F", "B": "IW", "I": "I", "W": "W"}[step.kind]:
                    key = (kind, direction, stage, step.microbatch)
                    assert key not in done, f"{step} runs twice"
                    done[key] = free[rank]
                times[rank, step] = (start, free[rank])
                alive[rank] += {"F": 1, "B": 0, "I": 0, "W": 0}[step.kind]
                most[rank] = max(most[rank], alive[rank])
                alive[rank] -= step.kind in "BW"
                place[rank] += 1
                moved = True
        assert moved, f"deadlock: {[todo[rank][place[rank] :][:1] for rank in range(plan.pp)]}"
    passes = plan.microbatches * stages
    assert Counter(kind for kind, *_ in done) == {"F": passes, "I": passes, "W": passes}
    assert alive == [0] * plan.pp
    return Run([end - start for end, start in zip(free, begun, strict=True)], idle, most, times)


def waits_for(step: Pass, direction: int, stage: int, stages: int) -> list[tuple[str, int, int, int]]:
    """What must be done before a pass: the message of the neighbour, and the rank's own earlier pass."""
    mb = step.microbatch
    if step.kind == "F":
        return [("F", direction, stage - 1, mb)] if stage else []
    if step.kind == "W":
        return [("I", direction, stage, mb)]
    return [("F", direction, stage, mb), *([("I", direction, stage + 1, mb)] if stage < stages - 1 else [])]


@pytest.mark.parametrize("plan", EXAMPLES, ids=str)
def test_every_schedule_runs_through(plan: Plan) -> None:
    """No rank waits for ever, every pass runs once and after what it needs, and the most micro-batches alive are those that `in_flight` tells."""
    run = simulate(plan)
    assert run.alive == [sum(in_flight(plan, rank).counts) for rank in range(plan.pp)]


@pytest.mark.parametrize("plan", EXAMPLES, ids=str)
def test_flights_are_the_extremes_of_the_order(plan: Plan) -> None:
    """Whatever a chunk weighs, the largest sum beside each kind of pass, counted along the order, is that of one of `flights`."""
    sizes = [(1, 1), (5, 0), (3, 2), (7, 6)]
    for rank in range(plan.pp):
        for scale in ((1,) * 4, (1, 10, 3, 0), (100, 1, 0, 7)):
            for kept, waiting in sizes:
                by_chunk = [(kept * s, waiting * s) for s in scale[: plan.chunks]]
                weights = ([k for k, _ in by_chunk], [w for _, w in by_chunk])
                found: dict[tuple[str, int], int] = {}
                for flight in flights(plan, rank):
                    key = (flight.kind, flight.chunk)
                    found[key] = max(found.get(key, 0), flight.weight(*weights))
                assert found == counted(plan, rank, *weights)


def counted(plan: Plan, rank: int, kept: Sequence[int], waiting: Sequence[int]) -> dict[tuple[str, int], int]:
    """The largest sum while each kind of pass runs, the passing micro-batch whole until its input gradient is done."""
    state: dict[tuple[int, int], int] = {}
    found: dict[tuple[str, int], int] = {}
    for kind, chunk, microbatch in order(plan, rank):
        state.setdefault((chunk, microbatch), kept[chunk])
        found[kind, chunk] = max(found.get((kind, chunk), 0), sum(state.values()))
        if kind == "I":
            state[chunk, microbatch] = waiting[chunk]
        elif kind in "BW":
            del state[chunk, microbatch]
    return found


def counts(schedule: Schedule, pp: int, microbatches: int, virtual: int = 1, group: int | None = None) -> list[int]:
    """Chunks alive on each rank at its busiest moment."""
    plan = Plan(schedule, pp, virtual, microbatches, group or pp)
    return [sum(in_flight(plan, rank).counts) for rank in range(pp)]


@pytest.mark.parametrize(("pp", "m"), [(2, 8), (4, 16), (4, 3), (8, 32), (16, 64)])
def test_the_table_of_schedules(pp: int, m: int) -> None:
    """The published numbers: GPipe m; 1F1B min(m, p - i); interleaved min(m·v, 2(p-i-1) + (v-1)g + 1) chunks; ZB-H1 p, of which i wait."""
    assert counts("gpipe", pp, m) == [m] * pp
    assert counts("1f1b", pp, m) == [min(m, pp - i) for i in range(pp)]
    for v in (2, 3, 5):
        for g in (pp, pp + 2):
            if m >= g:
                assert counts("interleaved", pp, m, v, g) == [min(m * v, 2 * (pp - i - 1) + (v - 1) * g + 1) for i in range(pp)]
    assert counts("zb-h1", pp, m) == [min(m, pp)] * pp


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_memory_of_zero_bubble_and_dualpipe(pp: int) -> None:
    """ZB-H1 holds (p-i) whole and i waiting, ZB-H2 2(p-i)-1 and 2i (arXiv 2401.10241); ZBV 2p half stages; DualPipe p + 1 stages, DualPipeV as
    many of its 2p."""
    m = 6 * pp
    for schedule, whole in (("zb-h1", lambda i: pp - i), ("zb-h2", lambda i: 2 * (pp - i) - 1)):
        for rank in range(pp):
            busiest = in_flight(Plan(schedule, pp, 1, m, pp), rank, kept=[10], waiting=[9])
            assert busiest.counts[0] - busiest.waiting[0] == whole(rank)
            assert busiest.waiting == ((1 if schedule == "zb-h1" else 2) * rank,)
    assert counts("zb-h2", pp, m) == [2 * pp - 1] * pp
    assert counts("zb-v", pp, m, 2) == [2 * pp] * pp
    assert counts("dualpipe", pp, m) == [pp + 1] * pp
    assert counts("dualpipe-v", pp, m, 2) == [2 * pp + 1] * pp


def test_interleaving_costs_what_korthikanti_says() -> None:
    """Rank 0 of an interleaved pipeline holds 1 + (p-1)/(p·v) times what it holds under 1F1B (Korthikanti et al., arXiv 2205.05198, 4.2.3)."""
    for pp, v in ((4, 2), (8, 3), (8, 5)):
        chunks = sum(in_flight(Plan("interleaved", pp, v, 4 * pp, pp), 0).counts)
        assert chunks / v == pp * (1 + (pp - 1) / (pp * v))


def test_bubbles() -> None:
    """Idle time from a rank's first pass to its last: (p-1)(F+B) in 1F1B, that divided by v interleaved, a third of it in ZB-H1, none in ZB-H2 and ZBV."""
    pp, m = 4, 16
    plans = [Plan(schedule, pp, virtual, m, pp) for schedule, virtual in (("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 2))]
    longest = {plan.schedule: max(simulate(plan).spans) - plan.virtual * m * 3 for plan in plans}
    assert longest == {"1f1b": 9, "interleaved": 9, "zb-h1": 3, "zb-h2": 0, "zb-v": 0}  # interleaved: in passes of half the length


def test_one_forward_one_backward_is_what_greedy_ranks_do() -> None:
    """1F1B, found anew: ranks that run backward whenever they can, and forward while fewer than p - i micro-batches are alive, keep the same order."""
    pp, m = 4, 9
    made: list[list[tuple[str, int]]] = [[] for _ in range(pp)]
    done: set[tuple[str, int, int]] = set()
    while len(done) < 2 * pp * m:
        now = set(done)
        for rank in range(pp):
            forwards, backwards = (sum(kind == k for kind, _ in made[rank]) for k in "FB")
            if ("F", rank, backwards) in now and (rank == pp - 1 or ("B", rank + 1, backwards) in now):
                step = ("B", backwards)
            elif forwards < m and forwards - backwards < pp - rank and (rank == 0 or ("F", rank - 1, forwards) in now):
                step = ("F", forwards)
            else:
                continue
            made[rank].append(step)
            done.add((step[0], rank, step[1]))
    assert made == [[(step.kind, step.microbatch) for step in order(Plan("1f1b", pp, 1, m, pp), rank)] for rank in range(pp)]


def test_the_riddle_of_gradient_accumulation() -> None:
    """Accumulating over more micro-batches costs nothing on one stage. On four it raises memory until there are as many micro-batches as stages:
    the first stage runs forward until the first micro-batch has come back from the last one, and keeps what it ran. Beyond that nothing is added,
    and the last stage, which turns every micro-batch round at once, never keeps more than one."""
    by_microbatches = {m: counts("1f1b", 4, m) for m in (1, 2, 3, 4, 8, 64)}
    assert [sum(in_flight(Plan("1f1b", 1, 1, m, 1), 0).counts) for m in by_microbatches] == [1] * 6
    assert [first for first, *_ in by_microbatches.values()] == [1, 2, 3, 4, 4, 4]
    assert [last for *_, last in by_microbatches.values()] == [1] * 6
    assert [first for first, *_ in (counts("gpipe", 4, m) for m in by_microbatches)] == list(by_microbatches)


def test_the_loss_has_all_but_the_last_chunk_behind_it() -> None:
    """At the loss of an interleaved pipeline the last rank keeps a group of micro-batches in each chunk but the last, as measured on Megatron-LM."""
    plan = Plan("interleaved", 4, 3, 16, 4)
    losses = [flight for flight in flights(plan, 3) if (flight.kind, flight.chunk) == ("F", 2)]
    assert max(losses, key=lambda flight: flight.weight([1] * 3, [0] * 3)).kept == (4, 4, 0)


# -- properties --------------------------------------------------------------------------------------------------------------
STEPS: dict[Schedule, int] = {"gpipe": 1, "1f1b": 1, "zb-h1": 1, "zb-h2": 1, "zb-v": 1, "dualpipe": 2, "dualpipe-v": 1, "interleaved": 0}
"""By how much micro-batches may grow; interleaved: by a group."""


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A plan that its schedule can run."""
    schedule = draw(st.sampled_from(list(STEPS)))
    pp = draw(st.integers(1, 8)) * (2 if schedule == "dualpipe" else 1)
    virtual = 2 if schedule in ("zb-v", "dualpipe-v") else draw(st.integers(2, 4)) if schedule == "interleaved" else 1
    least = 2 * pp if schedule.startswith("dualpipe") else 1
    if schedule == "interleaved":
        group = draw(st.integers(pp, pp + 3))
        return Plan(schedule, pp, virtual, group * draw(st.integers(1, 5)), group)
    return Plan(schedule, pp, virtual, least + (STEPS[schedule] * draw(st.integers(0, 40))), pp)


@settings(max_examples=300, deadline=None)
@given(plans(), st.lists(st.integers(0, 50), min_size=4, max_size=4), st.data())
def test_more_micro_batches_never_need_less(plan: Plan, sizes: list[int], data: st.DataObject) -> None:
    """Whatever the chunks weigh, no rank holds less when the step has more micro-batches."""
    rank = data.draw(st.integers(0, plan.pp - 1))
    more = Plan(plan.schedule, plan.pp, plan.virtual, plan.microbatches + (STEPS[plan.schedule] or plan.group), plan.group)
    weights = sizes[: plan.chunks]
    fewer, larger = (in_flight(p, rank, weights, weights).weight(weights, weights) for p in (plan, more))
    assert fewer <= larger


@settings(max_examples=200, deadline=None)
@given(plans())
def test_any_plan_runs_through(plan: Plan) -> None:
    """The simulation of any plan ends, and holds what `in_flight` tells."""
    assert simulate(plan).alive == [sum(in_flight(plan, rank).counts) for rank in range(plan.pp)]


def test_very_many_micro_batches_cost_no_time() -> None:
    """A thousand million micro-batches are answered at once: a full pipeline repeats itself."""
    for schedule, virtual in (("gpipe", 1), ("1f1b", 1), ("interleaved", 4), ("zb-h2", 1), ("zb-v", 2), ("dualpipe", 1), ("dualpipe-v", 2)):
        assert sum(in_flight(Plan(schedule, 8, virtual, 10**9, 8), 0).counts) > 0
