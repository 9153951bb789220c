"""What the concept pages say in words of their examples is what the answers say: the sentence is in the docstring of each test."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from everybyte import Answer, estimate, read_job
from everybyte.catalog.models import find_model
from everybyte.ledger.entry import Category, Phase

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "docs" / "jobs"
EXAMPLES = ROOT / "examples"
FULL = EXAMPLES / "llama-3.2-3b-full-80gb.yaml"


@cache
def answer(path: Path) -> Answer:
    return estimate(read_job(path))


def held(path: Path, category: Category, phase: Phase) -> int:
    """Bytes of a category in a phase, on the rank that needs most."""
    return sum(entry.bytes for entry in answer(path).worst.ledger if entry.category == category and phase in entry.phases)


def test_gradients_are_there_in_forward_with_accumulation_alone() -> None:
    """gradient.md: with accumulation, in forward and loss of every micro-batch but the first."""
    assert held(FULL, "gradient", "forward") > 0
    assert held(JOBS / "no-recompute.yaml", "gradient", "forward") == 0


def test_moments_are_twice_the_fp32_weights() -> None:
    """optimizer-state.md: the two moments of AdamW are twice the weights, and the largest part that never goes away."""
    states, weights = held(FULL, "optimizer_state", "between_steps"), held(FULL, "parameter", "between_steps")
    assert states == pytest.approx(2 * weights, rel=1e-3)
    assert states > answer(FULL).figures["static.allocated"] / 2


def test_the_loss_is_the_peak_without_recomputation() -> None:
    """autograd-detail.md and the start page: the loss is the highest instant of the step; at it the logits are 14 bytes for each token and entry."""
    path = JOBS / "no-recompute.yaml"
    assert answer(path).worst.peak_phase == "loss"
    rows = [entry for entry in answer(path).worst.ledger if entry.id == "working/head/loss" and "loss" in entry.phases]
    numbers = rows[0].symbols["n"] * rows[0].symbols["V"]
    assert sum(entry.bytes for entry in rows) == 14 * numbers


def test_the_foreach_step_is_the_peak() -> None:
    """temporary.md: the peak is in the optimizer, which holds one more copy of the weights."""
    path = JOBS / "foreach-step.yaml"
    assert answer(path).worst.peak_phase == "optimizer"
    assert held(path, "temporary", "optimizer") == pytest.approx(held(path, "parameter", "optimizer"), rel=1e-3)


def test_states_do_not_know_tokens() -> None:
    """state.md: no letter of the formula is a token, and the states need more than half of what the weights need."""
    path = JOBS / "mamba-batch.yaml"
    (row,) = [entry for entry in answer(path).worst.ledger if entry.category == "state"]
    assert not {"s", "t", "n"} & row.symbols.keys()
    assert row.bytes > held(path, "parameter", "prefill") / 2


def test_buckets_are_as_large_as_all_gradients() -> None:
    """comm-buffer.md: DDP holds buckets as large as all gradients for the whole step, so that a rank needs the gradients twice."""
    path = JOBS / "small-on-eight.yaml"
    assert held(path, "comm_buffer", "between_steps") == held(path, "gradient", "optimizer") > 0


def test_the_compute_buffer_can_be_more_than_the_weights() -> None:
    """workspace.md: with large micro-batches the compute buffer of llama.cpp is more than the weights."""
    path = JOBS / "ubatch.yaml"
    assert held(path, "workspace", "prefill") > held(path, "parameter", "prefill")


def test_context_is_visible_for_a_small_model() -> None:
    """context.md: for a small model on eight cards the context is a large part of what nvidia-smi shows."""
    path = JOBS / "small-on-eight.yaml"
    assert held(path, "context", "loss") > answer(path).figures["peak.device"] / 10


def test_graphs_live_from_capture_on() -> None:
    """graph-pool.md: from capture at start-up to the end."""
    (row,) = [entry for entry in answer(JOBS / "graphs-vllm.yaml").worst.ledger if entry.category == "graph_pool"]
    assert row.phases == ("capture", "prefill", "decode")


def test_reserved_is_more_than_allocated() -> None:
    """fragmentation.md: in its example blocks fit each other badly, so that free pieces are more than a twentieth."""
    figures = answer(JOBS / "no-recompute.yaml").figures
    assert figures["peak.reserved"] > 1.05 * figures["peak.allocated"]


def test_no_row_on_a_card_is_unknown() -> None:
    """unknown.md: today no row of this category lies on a card, and on the host there is one, with ZeRO-3 and pinned parameters."""
    for path in [*EXAMPLES.glob("*.yaml"), *EXAMPLES.glob("se*/*.yaml"), *JOBS.glob("*.yaml")]:
        assert not [entry.id for rank in answer(path).ranks for entry in rank.ledger if entry.category == "unknown"], path
    job = {
        "model": "meta-llama/Llama-2-13b-hf",
        "hardware": {"gpu": "a100-40gb", "gpus": 8},
        "train": {
            "framework": "deepspeed",
            "micro_batch": 1,
            "seq_len": 512,
            "precision": "bf16-master",
            "sharding": "zero3",
            "offload": {"params": "cpu", "optimizer": "cpu"},
        },
    }
    assert estimate(read_job(job)).host["host/cached blocks"] > 0


def test_names_of_models_are_rounded() -> None:
    """parameter.md: Llama-2-7B has 6.74 billion parameters, Qwen2-7B 7.62."""
    assert round((find_model("meta-llama/Llama-2-7b-hf").params_meta or 0) / 1e9, 2) == 6.74
    assert round((find_model("Qwen/Qwen2-7B").params_meta or 0) / 1e9, 2) == 7.62


def test_an_image_is_150528_numbers() -> None:
    """input.md: an image of 224 × 224 pixels is 150,528 numbers, and text has 16 bytes a token in a plain loop."""
    (images,) = [entry for entry in answer(JOBS / "vit-large-batch.yaml").worst.ledger if entry.id == "input/images"]
    assert images.bytes == 512 * 2 * 3 * 224 * 224
    (batch,) = [entry for entry in answer(JOBS / "no-recompute.yaml").worst.ledger if entry.id == "input/batch"]
    assert batch.bytes == 16 * 2 * 2048
