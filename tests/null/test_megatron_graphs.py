"""Attention in CUDA graphs under Megatron-LM: the capture, what replays keep, and the inputs that stay."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import estimate, headline
from everybyte.basics.errors import BadInput

SHAPE: dict[str, Any] = {
    "family": "gpt",
    "layers": 8,
    "hidden": 1024,
    "ffn": 4096,
    "heads": 16,
    "kv_heads": 16,
    "head_dim": 64,
    "vocab": 32000,
    "activation": "gelu",
    "norm": "layernorm",
    "position": "learned",
    "max_positions": 2048,
    "bias": True,
    "tied": False,
}
GRAPHS = {"cuda-graph-impl": "transformer_engine", "cuda-graph-modules": "[attn]"}
AT_START = {**GRAPHS, "cuda-graph-warmup-steps": 0}
BATCH, LENGTH = 2, 2048
HIDDEN, MASK = 2 * BATCH * LENGTH * 1024, BATCH * LENGTH**2
SCORES = 2 * BATCH * 16 * LENGTH**2


def job(**train: Any) -> dict[str, Any]:
    """A job with unfused attention on 8 GPUs."""
    base = {"framework": "megatron", "micro_batch": BATCH, "seq_len": LENGTH, "grad_accum": 8, "dropout": 0.0, "attention": "unfused"}
    return {"model": {"shape": SHAPE}, "hardware": {"gpu": "H100-SXM5-80GB", "gpus": 8}, "train": base | train}


def phases(**train: Any) -> dict[str, int]:
    """Bytes of each phase of the last rank."""
    return {phase.name: phase.allocated for phase in estimate(job(**train)).ranks[-1].phases}


def test_inputs_of_graphs_stay_for_every_layer_in_flight() -> None:
    """Hidden states and a mask for each of eight layers, one gradient, and workspaces of two more streams with two threads each."""
    more = phases(extra=AT_START)["between_steps"] - phases()["between_steps"]
    assert more == 8 * (HIDDEN + MASK) + HIDDEN + 4 * 32 * 2**20


def test_a_pipeline_reuses_inputs_of_micro_batches_that_have_gone_back() -> None:
    """The last of four stages has one micro-batch in flight, the first four of them."""
    pipeline = {"mesh": {"pp": 4}, "pipeline": {"schedule": "1f1b"}}
    ranks = [estimate(job(extra=extra, **pipeline)).ranks for extra in ({}, AT_START)]
    first, last = (ranks[1][place].figures["static.allocated"] - ranks[0][place].figures["static.allocated"] for place in (0, -1))
    assert first - last == 3 * 2 * (HIDDEN + MASK)


def test_the_capture_holds_what_attention_keeps_and_replays_do_not() -> None:
    """Eight layers' shares are there while graphs are captured; in the steps after that they lie in the graphs' pool."""
    eager, graphed = phases(), phases(extra=AT_START)
    assert graphed["init"] - graphed["between_steps"] + 8 * 8 * 12 * 1024**2 >= 8 * SCORES
    assert eager["loss"] - graphed["loss"] >= 7 * SCORES
    figures = estimate(job(extra=AT_START)).figures
    assert figures["peak.reserved"] >= graphed["loss"] + 8 * SCORES


def test_graphs_that_are_captured_later_leave_the_peak_to_the_steps_before() -> None:
    """With steps before the capture, three by default, the peak is that without graphs; the inputs are there from then on."""
    eager, graphed = headline(job()), headline(job(extra=GRAPHS, recompute="none"))
    assert graphed["peak.allocated"] == eager["peak.allocated"]
    assert graphed["static.allocated"] == eager["static.allocated"] + 4 * 32 * 2**20 + 8 * (HIDDEN + MASK) + HIDDEN


@pytest.mark.parametrize("extra", [{}, GRAPHS, AT_START])
def test_rows_add_up_to_the_figures(extra: dict[str, Any]) -> None:
    """Sums without rows are those of the rows."""
    found = estimate(job(extra=extra))
    assert headline(job(extra=extra))["peak.allocated"] == found.figures["peak.allocated"]


def test_a_wrong_number_of_steps_names_its_key() -> None:
    """Steps before the capture are a whole number."""
    with pytest.raises(BadInput, match=r"train\.extra\.cuda-graph-warmup-steps"):
        headline(job(extra={**GRAPHS, "cuda-graph-warmup-steps": "few"}))
