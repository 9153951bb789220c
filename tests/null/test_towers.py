"""Vision towers of a training job are counted or refused, never left out; what is taken for granted of images is said."""

from __future__ import annotations

import pytest

from everybyte import estimate
from everybyte.basics.errors import Unsupported

VISION = "Qwen/Qwen2.5-VL-7B-Instruct"


@pytest.mark.parametrize("framework", ["pytorch", "transformers", "trl", "axolotl"])
def test_towers_are_counted_and_images_told(framework: str) -> None:
    """Frameworks that run Hugging Face models have rows of the tower, and the answer says how many images it takes for granted."""
    answer = estimate({"model": VISION, "train": {"framework": framework, "micro_batch": 1, "seq_len": 1024, "precision": "bf16"}})
    assert any("vis" in row.id for row in answer.ranks[0].ledger)
    assert any("one image" in text and "vision tower" in text for text in answer.assumptions)


@pytest.mark.parametrize("framework", ["megatron", "nemo", "torchtitan", "litgpt"])
def test_towers_are_refused_with_a_way_out(framework: str) -> None:
    """Frameworks whose accounts have no tower refuse the model, and say what to give instead."""
    with pytest.raises(Unsupported, match=r"vision tower .* language model alone"):
        estimate({"model": VISION, "train": {"framework": framework, "micro_batch": 1, "seq_len": 1024}})
