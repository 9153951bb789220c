"""The order in which each rank of a pipeline runs its passes, as the frameworks' own schedules have it.

Sources: Megatron-LM core/pipeline_parallel/schedules.py at d98e8a6 (1F1B, get_pp_rank_microbatches, get_schedule_table); torch 2.13
distributed/pipelining/schedules.py (GPipe, interleaved, ZB1P, ZBV, DualPipeV); Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241,
section 2 (ZB-H1, ZB-H2); github.com/deepseek-ai/DualPipe dualpipe/dualpipe.py and dualpipev.py at 3da1bbe.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from everybyte.rules.parallel.schedules import Plan

Kind = Literal["F", "B", "I", "W"]
"""A forward pass, a whole backward pass, or one of its halves: the gradient of the input, the gradients of the weights."""


class Pass(NamedTuple):
    """One pass of one micro-batch through one chunk of a rank."""

    kind: Kind
    chunk: int
    microbatch: int
    """Counted by direction in DualPipe, whose micro-batches come from both ends."""


def order(plan: Plan, rank: int) -> Iterator[Pass]:
    """All passes of a rank in program order. Where two run at once (DualPipe's overlapped pairs) the forward pass is named first."""
    if plan.schedule == "dualpipe":
        return _dualpipe(plan, rank)
    if plan.schedule == "dualpipe-v":
        return _both_ways(plan.pp, rank, plan.microbatches, 0)
    return _zb_v(plan, rank) if plan.schedule == "zb-v" else _alternating(plan, rank)


# -- forward ahead of backward -----------------------------------------------------------------------------------------------
def warmup(plan: Plan, rank: int) -> int:
    """Forward passes (of chunks) before the first one that a backward pass follows.

    zb-h1 and zb-h2 are the schedules that the paper draws for F, I and W of equal length: the second runs twice as far ahead, which fills the
    bubble. (The authors' scheduler searches an order for measured times under the same limits of p and 2p micro-batches.)
    With overlap_moe_expert_parallel_comm Megatron-LM runs one more forward pass ahead and each later one beside a backward pass, whose tensors make
    room for it: no more is alive than without.
    """
    behind, chunks = plan.pp - 1 - rank, (plan.virtual - 1) * plan.group
    ahead = {"gpipe": plan.passes, "1f1b": behind, "interleaved": 2 * behind + chunks, "zb-h1": behind + chunks, "zb-h2": 2 * behind}
    return min(ahead[plan.schedule], plan.passes)


def delay(plan: Plan, rank: int) -> int:
    """Input gradients that weight gradients stay behind, so that ranks further down fill their wait at the end with them."""
    return {"zb-h1": rank, "zb-h2": 2 * rank}.get(plan.schedule, 0)


def is_split(plan: Plan) -> bool:
    """Whether every backward pass runs in two halves, of which the second may be late."""
    return plan.schedule in ("zb-h1", "zb-h2")


def table(plan: Plan) -> list[tuple[int, int]]:
    """(micro-batch, chunk) of each forward pass: a group of micro-batches through one chunk, then through the next (get_schedule_table)."""
    starts = range(0, plan.microbatches, plan.group)
    return [(microbatch, chunk) for start in starts for chunk in range(plan.virtual) for microbatch in range(start, min(start + plan.group, plan.microbatches))]


def _alternating(plan: Plan, rank: int) -> Iterator[Pass]:
    """Forward passes to begin with, then one backward pass after each, then what is left; weight gradients `delay` behind where they are apart."""
    forward = table(plan)
    backward = [(microbatch, plan.virtual - 1 - chunk) for microbatch, chunk in forward]
    ahead, behind, split = warmup(plan, rank), delay(plan, rank), is_split(plan)
    for step in range(len(forward) + ahead + behind):
        if step < len(forward):
            yield Pass("F", forward[step][1], forward[step][0])
        if 0 <= step - ahead < len(forward):
            microbatch, chunk = backward[step - ahead]
            yield Pass("I" if split else "B", chunk, microbatch)
        if split and 0 <= step - ahead - behind < len(forward):
            microbatch, chunk = backward[step - ahead - behind]
            yield Pass("W", chunk, microbatch)


# -- down the ranks and back -------------------------------------------------------------------------------------------------
class _Track:
    """Numbers the passes of two chunks; weight gradients come in the order of their input gradients."""

    def __init__(self) -> None:
        self.forwards = [0, 0]
        self.backwards = [0, 0]
        self.waiting: list[tuple[int, int]] = []

    def forward(self, chunk: int) -> Pass:
        self.forwards[chunk] += 1
        return Pass("F", chunk, self.forwards[chunk] - 1)

    def backward(self, chunk: int, *, split: bool = False) -> Pass:
        self.backwards[chunk] += 1
        microbatch = self.backwards[chunk] - 1
        if split:
            self.waiting.append((chunk, microbatch))
        return Pass("I" if split else "B", chunk, microbatch)

    def weights(self, chunk: int | None = None) -> Pass:
        oldest = next(pair for pair in self.waiting if chunk in (None, pair[0]))
        self.waiting.remove(oldest)
        return Pass("W", *oldest)


def _dualpipe(plan: Plan, rank: int) -> Iterator[Pass]:
    """Half of the micro-batches from each end (DualPipe.step). Chunk 0 is the stage of the rank's own number, chunk 1 that of the opposite rank."""
    near = 0 if rank < plan.pp // 2 else 1
    return _both_ways(plan.pp // 2, min(rank, plan.pp - 1 - rank), plan.microbatches // 2, near)


def _both_ways(ranks: int, rank: int, microbatches: int, near: int) -> Iterator[Pass]:
    """The eight steps of DualPipe, and of DualPipeV, where the second chunk is the way back. `near`: the chunk whose micro-batches begin at this end."""
    track, far, inner = _Track(), 1 - near, ranks - rank - 1
    for _ in range(2 * inner):
        yield track.forward(near)
    for _ in range(rank + 1):
        yield track.forward(near)
        yield track.forward(far)
    for _ in range(inner):
        yield track.backward(far, split=True)
        yield track.weights()
        yield track.forward(far)
    for _ in range(microbatches - 2 * ranks + rank + 1):
        yield track.forward(near)
        yield track.backward(far)
        yield track.forward(far)
        yield track.backward(near)
    for _ in range(inner):
        yield track.backward(far)
        yield track.forward(far)
        yield track.backward(near)
    for turn in range(2 * (rank + 1)):
        yield track.backward((far, near)[turn % 2], split=turn > rank)  # the second half is split
    for _ in range(inner):
        yield track.weights()
        yield track.backward(near, split=True)
    for _ in range(rank + 1):
        yield track.weights()


def _zb_v(plan: Plan, rank: int) -> Iterator[Pass]:
    """torch's ScheduleZBVZeroBubble; fewer micro-batches than 2p - 1 leave gaps in the order of so many."""
    microbatches = max(2 * plan.pp - 1, plan.microbatches)
    return (step for step in _full_zb_v(plan.pp, rank, microbatches) if step.microbatch < plan.microbatches)


def _full_zb_v(ranks: int, rank: int, microbatches: int) -> Iterator[Pass]:
    track = _Track()
    for _ in range(2 * (ranks - rank) - 1):
        yield track.forward(0)
    for _ in range(rank):
        yield track.forward(1)
        yield track.forward(0)
    for turn in range(microbatches - rank):
        if turn >= ranks - rank:
            if track.forwards[0] < microbatches:
                yield track.forward(0)
            yield track.backward(0, split=True)
            yield track.weights()
        yield track.forward(1)
        yield track.backward(1, split=True)
        yield track.weights()
    for _ in range(rank):
        yield track.backward(0, split=True)
        yield track.backward(1, split=True)
    for _ in range(ranks - rank):
        yield track.backward(0, split=True)
        yield track.weights(0)
    for chunk in (1, 0):
        for _ in range(rank):
            yield track.weights(chunk)
