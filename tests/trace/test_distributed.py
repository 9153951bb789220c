"""A rank that is traced alone takes what a real rank among others takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.trace.peaks import CLOSE
from tests.trace.programs import parallel
from tests.trace.ranks import alone, traced_rank
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from everybyte.rules.communication.communicators import communicators
from everybyte.rules.communication.nccl import Wires, nccl_lines
from everybyte.rules.parallel.mesh import Mesh
from everybyte.trace.ranks.pipelines import Done, UnknownShapes
from everybyte.trace.request import BUCKET, GATHERED, OUTPUT, TraceRequest
from everybyte.trace.results.answer import answer_of_ranks
from everybyte.trace.run import run, run_ranks

PROGRAM = Path(parallel.__file__)
PIPELINES = (*parallel.SCHEDULES, "gpipe-asking")
KINDS = (*parallel.WRAPPED, *PIPELINES)
SHORT = ("ddp-static", "fsdp1", "fsdp2", "tp-fsdp2", "1f1b", "zbv")
"""Kinds of the usual run; all are in the long one."""


def real_peaks(meeting: Path, kinds: Sequence[str]) -> list[dict[str, list[int]]]:
    """The peaks of the first step and of later ones of two real ranks with gloo."""
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, str(PROGRAM), str(rank), str(meeting), *kinds], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=one_thread)
        for rank in (0, 1)
    ]
    return [json.loads(rank.communicate(timeout=400)[0].splitlines()[-1]) for rank in ranks]


@pytest.mark.parametrize("kinds", [SHORT, pytest.param(KINDS, marks=pytest.mark.long)], ids=["short", "all"])
def test_a_rank_alone_peaks_as_a_real_one(kinds: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under every wrapper a rank of two peaks, alone on fake tensors, where torch's profiler measured them among real processes."""
    real = real_peaks(tmp_path / "meeting", kinds)
    monkeypatch.setattr(Done, "wait", lambda *_: True)  # gloo holds what was sent even after the program has waited for it, NCCL does not
    sent: dict[int, Any] = {}
    stages = product((kind for kind in PIPELINES if kind in kinds), (0, 1))
    alike = product((kind for kind in parallel.WRAPPED if kind in kinds), (1,))
    for kind, rank in (*stages, *alike):
        peaks, _ = traced_rank(lambda kind=kind: parallel.build(kind, "cpu"), rank, 2, parallel.STEPS, told=sent.__setitem__, asks=lambda stage, _: sent[stage])
        first, later = real[rank][kind]
        assert peaks[-1] == pytest.approx(later, rel=CLOSE), kind
        if not kind.endswith(parallel.ASKING):  # whose stages run once more, and what that made lives until the first backward
            assert peaks[0] <= first * (1 + CLOSE), kind  # it happens once only: gloo may have held more


@pytest.mark.parametrize("kind", ["ddp", "fsdp2-mixed", "fsdp2-recomputed", "tp-fsdp2"])
def test_the_peak_is_that_of_torchs_own_tracker(kind: str) -> None:
    """The highest instant of a rank of four is, to the byte, the one that torch's MemTracker finds."""
    _, highest = traced_rank(lambda: parallel.build(kind, "cpu"), 1, 4, 2)
    with alone(1, 4):
        tracker = MemTracker()
        with tracker:
            step = parallel.build(kind, "cpu")
            for _ in range(2):
                step()
                tracker.reset_mod_stats()
        found: Any = tracker.get_tracker_snapshot("peak")
    assert highest == found[torch.device("cpu")]["Total"]


def test_the_program_sees_its_own_rank() -> None:
    """An unchanged program that asks for NCCL gets a group in which it is that rank of so many, its place in its node, and collectives of objects."""
    with alone(13, 64):
        dist.init_process_group("nccl")
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (13, 64, "nccl")
        assert {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK")} == {
            "RANK": "13",
            "WORLD_SIZE": "64",
            "LOCAL_RANK": "5",
            "GROUP_RANK": "1",
        }
        group = dist.new_group([12, 13], backend="nccl")
        dist.all_reduce(torch.ones(4), group=group)
        dist.barrier()
        objects: list[Any] = [None] * 64
        dist.all_gather_object(objects, "mine")
        assert objects == ["mine"] * 64
    assert not dist.is_initialized()
    assert "RANK" not in os.environ


def test_nccls_buffers_are_those_of_an_estimate() -> None:
    """The groups that FSDP2 uses on eight GPUs have the same rows as an estimate of such a job, and what is gathered and what is
    reduced lie on streams of their own."""
    traced = run(TraceRequest(target=f"{PROGRAM}:fsdp2_mixed", world=8, rank=7))
    expected = nccl_lines(communicators(Mesh(gpus=8, dp_shard=8), "torch"), Wires(9))
    assert nccl_lines(traced.groups, Wires(9)) == expected
    gathered = {birth.stream for birth in traced.births if birth.phase == "forward" and birth.stream}
    reduced = {birth.stream for birth in traced.births if birth.phase == "backward" and birth.stream} - gathered
    assert (len(gathered), len(reduced)) == (1, 1)


@pytest.mark.parametrize(("kind", "rows"), [("fsdp2_mixed", {"gathered/layers.2", "gathered/embed", "gathered/head"}), ("ddp", {"buckets/gradients"})])
def test_buffers_of_wrappers_have_rows_as_in_an_estimate(kind: str, rows: set[str]) -> None:
    """Parameters that FSDP2 has gathered are told by the piece of the network that runs, and DDP's buckets are as large as all gradients, one at first and
    several from the second step on."""
    asked = TraceRequest(target=f"{PROGRAM}:{kind}", world=8)
    traced = run(asked)
    answer = answer_of_ranks(((asked, traced),))
    found = {entry.id: entry for entry in answer.ranks[0].ledger}
    assert rows <= set(found)
    if kind == "ddp":
        parameters = sum(birth.nbytes for birth in traced.births if birth.category == "parameter")
        assert found["buckets/gradients"].bytes == pytest.approx(parameters, rel=CLOSE)
        second = traced.marks[1].position
        assert sorted(birth.born >= second for birth in traced.births if birth.operation == BUCKET) == [False, True, True]


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "fsdp1", "fsdp1_named", "tp", "tp_fsdp2"])
def test_a_models_size_is_that_of_all_ranks(kind: str) -> None:
    """However parameters are sharded, the answer names the number of the whole model's."""
    asked = TraceRequest(target=f"{PROGRAM}:{kind}", world=6, steps=1)
    model = answer_of_ranks(((asked, run(asked)),)).model
    assert (model.params, model.trainable_params) == (parallel.PARAMETERS, parallel.PARAMETERS)


def test_the_limiter_of_fsdp1_holds_frees_back() -> None:
    """What FSDP1 frees while another stream uses it is late, as far as its limiter lets the program run ahead; FSDP2 frees nothing so."""
    old, new = (run(TraceRequest(target=f"{PROGRAM}:{kind}", world=4)) for kind in ("fsdp1", "fsdp2"))
    assert old.late
    assert all(old.events[position][1] < 0 and position < end for position, end in old.late)
    assert new.late == ()


def test_groups_are_called_by_their_axes() -> None:
    """Tensor parallelism beside FSDP2 on 256 GPUs uses groups named by the axes of its mesh, of their sizes."""
    traced = run(TraceRequest(target=f"{PROGRAM}:tp_fsdp2", world=256, rank=255))
    assert {group.name: group.ranks for group in traced.groups} == {"tp": 2, "dp_shard": 128, "world": 256}


def test_accelerate_shards_model_and_optimizer() -> None:
    """Under accelerate's FSDP2 each of eight ranks has an eighth of the parameters, once more of the gradients, and twice of AdamW's states."""
    traced = run(TraceRequest(target=f"{PROGRAM.with_name('accelerated.py')}:build", world=8, rank=3))
    first, second = (mark.position for mark in traced.marks[:2])
    share = sum(birth.nbytes for birth in traced.births if birth.category == "parameter" and birth.operation not in (GATHERED, OUTPUT))
    whole = (2 * 2048 * 128 + 2 * (128 * 128 * 3 + 128 * 256 * 3 + 2 * 128) + 128) * 4
    gradients = sum(birth.nbytes for birth in traced.births if birth.category == "gradient" and first <= birth.born < second)
    assert share == pytest.approx(whole / 8, rel=CLOSE)
    assert gradients == pytest.approx(share, rel=CLOSE)
    assert sum(birth.nbytes for birth in traced.births if birth.category == "optimizer_state") == pytest.approx(2 * share, rel=CLOSE)


@pytest.mark.parametrize(("script", "arguments", "ranks"), [("loop.py", (), 8), ("trainer.py", ("fsdp2",), 8), ("trainer.py", ("ddp",), 1)])
def test_scripts_run_as_they_stand(script: str, arguments: tuple[str, ...], ranks: int, tmp_path: Path) -> None:
    """A script with accelerate's loop, and one with the Trainer of transformers, run unchanged as one of eight ranks, with its share of AdamW's states."""
    given = (*arguments, str(tmp_path)) if arguments else ()
    traced = run(TraceRequest(target=str(PROGRAM.with_name(script)), arguments=given, world=8, rank=3))
    states = sum(birth.nbytes for birth in traced.births if birth.category == "optimizer_state")
    assert [mark.name for mark in traced.marks] == ["step 1", "step 2", "end"]
    assert states == pytest.approx(2 * 4 * traced.parameters / ranks, rel=CLOSE)


def test_the_rank_that_needs_most_decides() -> None:
    """First and last stage of a pipeline are two ranks of one answer, and its figures are those of the last, which has the logits."""
    asked = TraceRequest(target=f"{PROGRAM}:gpipe", world=4)
    answer = answer_of_ranks(run_ranks(asked, (0, 3)))
    assert [rank.label for rank in answer.ranks] == ["rank 0", "rank 3"]
    assert answer.ranks[1].figures["peak.allocated"] > answer.ranks[0].figures["peak.allocated"]
    assert answer.figures == max((rank.figures for rank in answer.ranks), key=lambda figures: figures["peak.device"])


@pytest.mark.parametrize(("kind", "rank"), [("gpipe", 2), pytest.param("zbv", 0, marks=pytest.mark.long)])
def test_stages_may_ask_their_neighbours(kind: str, rank: int) -> None:
    """Stages that do not know the shapes between them are told by other ranks, each in its process, and need what stages need that know them; on the first
    rank of a V lies the last stage, behind six others."""
    known, asking = (TraceRequest(target=f"{PROGRAM}:{name}", world=4, rank=rank) for name in (kind, f"{kind}_asking"))
    answers = [answer_of_ranks(((asked, run(asked)),)) for asked in (known, asking)]
    assert answers[0].figures == answers[1].figures


def test_a_stage_that_asks_nobody_is_told_what_to_give() -> None:
    """A pipeline stage whose neighbours cannot say the shapes between them is refused with what PipelineStage has to be given."""
    with alone(1, 4):
        dist.init_process_group("nccl")
        stage = PipelineStage(parallel.Model(first=False, last=False), 1, 4, torch.device("cpu"))
        with pytest.raises(UnknownShapes, match="input_args and output_args"):
            ScheduleGPipe(stage, n_microbatches=2, loss_fn=None).step()
