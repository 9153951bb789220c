"""What the verdict rests on: the rank that needs most, against all of the card."""

from __future__ import annotations

from typing import Any

from everybyte import estimate

SHAPE = {"family": "llama", "layers": 4, "hidden": 256, "ffn": 512, "heads": 4, "vocab": 400_000}
TRAIN: dict[str, Any] = {"framework": "torchtitan", "micro_batch": 1, "seq_len": 2048, "precision": "bf16-mixed"}


def test_a_job_that_fills_the_card_fits() -> None:
    """A card of exactly the needed size is enough, one byte less is not."""
    job = {"model": {"shape": {**SHAPE, "vocab": 1000}}, "train": {"framework": "pytorch", "micro_batch": 1, "seq_len": 512}}

    def on(memory: int) -> Any:
        return estimate({**job, "hardware": {"gpu": {"name": "card", "memory_bytes": memory}}})

    needed = on(2**36).figures["peak.device"]
    enough, short = on(needed), on(needed - 1)
    assert (enough.fits, enough.headroom) == (True, 0)
    assert (short.fits, short.headroom) == (False, -1)


def test_the_rank_that_needs_most_gives_the_figures() -> None:
    """With a large vocabulary the last stage of a pipeline, which has the logits, needs more than the first; the answer's figures are its own."""
    found = estimate({"model": {"shape": SHAPE}, "hardware": {"gpu": "h100-80gb", "gpus": 2}, "train": {**TRAIN, "mesh": {"pp": 2}}})
    first, last = found.ranks
    assert last.figures["peak.device"] > first.figures["peak.device"]
    assert found.figures["peak.device"] == last.figures["peak.device"]
