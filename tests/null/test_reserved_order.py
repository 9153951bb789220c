"""What decides how much is reserved: the order of allocations around the loss, and what is left when the cache had to be given back."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import estimate
from everybyte.allocator.reserved import peak_reserved
from everybyte.basics.allocations import flat
from everybyte.basics.errors import Unsupported
from everybyte.basics.units import GiB, MiB
from everybyte.estimator import accounted
from everybyte.job import read_job
from everybyte.rules.accounting.overhead import cublas_workspace


def lora(**train: Any) -> dict[str, Any]:
    """Mistral with LoRA on one A100, fms-acceleration's cross entropy: 4 sequences of 4,096 tokens, logits of 2,000 MiB in fp32."""
    usual = {
        "framework": "transformers",
        "version": "transformers 4.45.2, torch 2.4.1",
        "micro_batch": 4,
        "seq_len": 4096,
        "precision": "bf16",
        "adapter": {"kind": "lora", "rank": 16, "targets": ["q_proj", "v_proj"]},
        "recompute": "full",
        "attention": "flash2",
        "kernels": ["foak-ce"],
    }
    return {"model": "mistralai/Mistral-7B-v0.1", "hardware": {"gpu": "a100-80gb"}, "train": {**usual, **train}}


LOGITS = 4 * 4 * 4096 * 32000


@pytest.mark.parametrize(
    ("torch", "added", "blocks"),
    [("torch 2.4.1", 1, 1), ("torch 2.4.1", None, 0), ("torch 2.9", 1, 0)],
    ids=["two slices, a padding token", "two slices", "one slice, a padding token"],
)
def test_a_padding_token_costs_one_more_block_of_logits(torch: str, added: int | None, blocks: int) -> None:
    """Before torch 2.9 `logits[..., :-1, :]` goes back twice, and a vocabulary of 32,001 no longer fits the block of the shifted gradient: the published
    table of fms-acceleration grew by exactly one such block, with equal allocated bytes."""
    plain = estimate(lora(version="transformers 4.45.2, torch 2.9")).figures
    grown = estimate(lora(version=f"transformers 4.45.2, {torch}", added_tokens=added)).figures
    assert round((grown["peak.reserved"] - plain["peak.reserved"]) / LOGITS) == blocks
    assert abs(grown["peak.allocated"] - plain["peak.allocated"]) < 2 * MiB


def test_added_tokens_are_rows_of_embedding_and_head() -> None:
    """Each is a row of hidden width in both tables; a network with other ends is refused by the key."""
    plain, grown = (estimate(lora(added_tokens=count)).model.params for count in (None, 3))
    assert grown - plain == 3 * 2 * 4096
    with pytest.raises(Unsupported, match=r"train\.added_tokens"):
        estimate({**lora(added_tokens=3, adapter=None), "model": "google/vit-base-patch16-224"})


def test_a_workspace_comes_behind_the_first_result() -> None:
    """cuBLAS's handle is asked for when the result of its first product has been allocated."""
    _, _, found = accounted(read_job(lora(recompute="none")))
    events = list(flat(found.ranks[0].bill.script()))
    place = next(index for index, event in enumerate(events) if event[1] == cublas_workspace("8.0"))
    queries = 2 * 4 * 4096 * 4096
    assert events[place - 1][1] == queries


def test_what_a_reading_once_a_second_sees() -> None:
    """Where cached blocks are given back for want of room, what is left at the end of the step stays; elsewhere the peak does."""
    events = [(1, 30 * MiB), (2, 40 * MiB), (2, 0), (3, 60 * MiB), (3, 0), (4, 20 * MiB)]
    near, roomy = peak_reserved(events, capacity=100 * MiB), peak_reserved(events, capacity=1000 * MiB)
    assert (near.peak, near.retries, near.sampled) == (90 * MiB, 1, 90 * MiB)
    assert (roomy.retries, roomy.sampled) == (0, roomy.peak)


def test_two_figures_near_the_limit() -> None:
    """The reading and the instant are both named; the instant has the whole card and decides about the headroom."""
    answer = estimate(lora(micro_batch=20, added_tokens=2))
    figures = answer.figures
    assert answer.hardware is not None
    assert figures["peak.device"] < figures["peak.device.instant"] <= answer.hardware.capacity
    assert answer.headroom == answer.hardware.capacity - figures["peak.device.instant"]
    assert figures["peak.device.instant"] - figures["peak.reserved"] < GiB
