"""Memory that several ranks of a serving engine need to talk, outside torch's allocator."""

from __future__ import annotations

from everybyte.basics.units import MiB
from everybyte.job import Job
from everybyte.ledger.build import Line, plain
from everybyte.rules.accounting.account import Device
from everybyte.rules.communication.communicators import Communicator
from everybyte.rules.communication.nccl import nccl_lines, wires_of
from everybyte.rules.parallel.mesh import NODE

CUSTOM_ALL_REDUCE = (
    "vllm distributed/device_communicators/custom_all_reduce.py, sglang likewise: signals and a buffer of max_size (8 MiB) that peers read, rank_data 8 MiB"
)
MOST_RANKS = 8
"""Ranks up to which the one-shot all-reduce is used, on one node with NVLink."""


def serving_lines(job: Job, device: Device, tp: int, pp: int) -> tuple[Line, ...]:
    """Rows of one rank: the tensor-parallel group, and the group in which stages hand hidden states on."""
    if tp * pp == 1:
        return ()
    node = (job.hardware.gpus_per_node if job.hardware is not None else None) or NODE
    wires = wires_of(job, device)
    groups = []
    if tp > 1:
        groups.append(Communicator("tp", tp, min(tp, node)))
    if pp > 1:
        groups.append(Communicator("pp", pp, max(min(pp, node // tp), 1), collective=False, peers=min(pp - 1, 2)))
    rows = nccl_lines(tuple(groups), wires)
    if tp > 1 and tp <= min(MOST_RANKS, node) and wires.nvlink:
        rows = (
            *rows,
            Line("all_reduce/custom", "context", 16 * MiB, plain("buffer + rank_data", buffer=8 * MiB, rank_data=8 * MiB), CUSTOM_ALL_REDUCE, "formula"),
        )
    return rows
