"""Uneven routing under torchtitan's expert parallelism: rows with a range, and the peak of the worst case."""

from __future__ import annotations

import pytest

from everybyte import estimate, headline
from everybyte.estimator import accounted
from everybyte.job import read_job
from everybyte.layers.recording.size import Batch, arriving
from everybyte.ledger.answer import Answer

SHAPE = {
    "family": "moe",
    "layers": 4,
    "hidden": 256,
    "ffn": 512,
    "heads": 8,
    "kv_heads": 8,
    "vocab": 1024,
    "experts": 8,
    "top_k": 2,
    "moe_ffn": 384,
    "moe_layers": [0, 1, 2, 3],
}


def job(ep: int, pp: int = 1) -> dict[str, object]:
    """A small mixture on 16 GPUs."""
    train = {"framework": "torchtitan", "micro_batch": 2, "seq_len": 512, "grad_accum": 4, "recompute": "none", "mesh": {"ep": ep, "pp": pp}}
    return {"model": {"shape": SHAPE}, "hardware": {"gpu": "h100-80gb", "gpus": 16}, "train": train}


def ranges(found: Answer) -> list[tuple[int, int, int]]:
    """(bytes, low, high) of the rows with a range that torch's allocator holds."""
    rows = [entry for rank in found.ranks for entry in rank.ledger if entry.category != "context"]
    return [(e.bytes, e.low, e.high) for e in rows if e.low is not None and e.high is not None]


@pytest.mark.parametrize(("top_k", "ranks", "held", "most"), [(2, 4, 2, 8), (2, 8, 1, 8), (8, 8, 16, 64), (6, 4, 2, 8)])
def test_tokens_that_arrive(top_k: int, ranks: int, held: int, most: int) -> None:
    """top_k copies of every token where routing is balanced; from each rank as many as a token has experts here, at most."""
    (axis,) = arriving(top_k, ranks, held).axes
    batch = Batch(2, 32, 32)
    assert batch.value(axis) == 64 * top_k
    assert batch._replace(is_uneven=True).value(axis) == 64 * most


@pytest.mark.parametrize("pp", [1, 2])
def test_an_answer_says_what_the_worst_case_is(pp: int) -> None:
    """Rows begin at the balanced case, the sentence has the peak of the step in which all tokens come to this rank, and the figures are balanced."""
    asked = job(4, pp)
    found = estimate(asked)
    assert ranges(found)
    assert all(size == low < high for size, low, high in ranges(found))
    worst = max(max(rank.uneven.totals().values()) for rank in accounted(read_job(asked))[2].ranks if rank.uneven is not None)
    sentence = next(text for text in found.assumptions if "expert-parallel group" in text)
    assert f"{worst / 2**30:,.1f} GiB there" in sentence
    assert worst > found.figures["peak.allocated"] == headline(asked)["peak.allocated"]


def test_without_expert_parallelism_nothing_is_uneven() -> None:
    """Every token stays on its rank."""
    found = estimate(job(1))
    assert not ranges(found)
    assert not any("balanced" in text or "expert-parallel" in text for text in found.assumptions)
