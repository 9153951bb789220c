"""Generation with transformers by release: logits of the prompt, tables of positions."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import estimate


def rows(version: str, model: str = "Qwen/Qwen2.5-7B", **serve: Any) -> dict[str, int]:
    """Bytes of each row that lives in the prefill of 8,128 tokens."""
    asked = {"engine": "transformers", "version": f"transformers {version}", "context": 8192, "attention": "flash2", "extra": {"new_tokens": 64}, **serve}
    ledger = estimate({"model": model, "hardware": {"gpu": "a100-80gb"}, "serve": asked}).worst.ledger
    return {entry.id: entry.bytes for entry in ledger if "prefill" in entry.phases}


def test_logits_of_the_whole_prompt_before_4_45() -> None:
    """n·V logits in 16 bits and their copy in fp32; since then those of the last position alone, which are no peak."""
    old, new = rows("4.44.2"), rows("4.45.2")
    assert old["working/head/lm_head"] + old["working/head/block"] == 6 * 8128 * 152_064
    assert "working/head/lm_head" not in new


@pytest.mark.parametrize(
    ("model", "last", "first", "size"),
    [
        ("Qwen/Qwen2.5-7B", "4.44.2", "4.45.2", 28 * 2 * 2 * 131_072 * 128),
        ("mistralai/Mistral-7B-v0.1", "4.41.2", "4.42.4", 32 * 2 * 2 * 32_768 * 128),
        ("meta-llama/Meta-Llama-3-8B", "4.40.1", "4.41.2", 32 * 2 * 2 * 8_192 * 128),
        ("mistralai/Mixtral-8x7B-v0.1", "4.46.3", "4.48.1", 32 * 2 * 2 * 32_768 * 128),
    ],
)
def test_old_files_keep_tables_of_positions_in_every_layer(model: str, last: str, first: str, size: int) -> None:
    """cos and sin of max_position_embeddings in the type of the weights, from the release of the wheel that has them to the one that does not."""
    assert rows(last, model)["weights/rotary/128"] == size
    assert "weights/rotary/128" not in rows(first, model)
