"""The batch that a step is given, and what `freeze` leaves out of training."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import BadInput, estimate

VIT = "google/vit-base-patch16-224"
LLAMA = "meta-llama/Llama-3.2-1B"


def rows(model: str, **train: Any) -> dict[str, int]:
    """Bytes of the rows of a plain training loop by id, in its highest phase or between steps."""
    settings = {"framework": "pytorch", "precision": "bf16-mixed", "micro_batch": 4, **train}
    found = estimate({"model": model, "train": settings}).worst.ledger
    return {e.id: e.bytes for e in found if {"forward", "between_steps"} & set(e.phases)}


def test_images_are_the_batch_of_a_vision_model() -> None:
    """Four fp32 images of 3·224·224 numbers and a label each, not ids of tokens."""
    found = rows(VIT)
    assert found["input/images"] == 4 * 3 * 224 * 224 * 4
    assert found["input/labels"] == 4 * 8
    assert "input/batch" not in found


def test_a_vision_model_needs_no_sequence_length() -> None:
    """Its tokens are those of its images: 14·14 patches and the class token."""
    answer = estimate({"model": VIT, "train": {"framework": "pytorch", "micro_batch": 4}})
    assert answer.job["train"]["seq_len"] == 197


def test_ids_and_labels_are_the_batch_of_a_language_model() -> None:
    """Two int64 numbers a token in a plain loop."""
    assert rows(LLAMA, seq_len=100)["input/batch"] == 4 * 100 * 16


@pytest.mark.parametrize("name", ["layers", "model.layers"])
def test_frozen_blocks_have_neither_states_nor_activations(name: str) -> None:
    """The path of the blocks freezes all of them: below the head nothing is trained and nothing is kept."""
    free, frozen = rows(LLAMA, seq_len=100), rows(LLAMA, seq_len=100, freeze=[name, "embed_tokens"])
    assert any(i.startswith("optimizer/layers") for i in free)
    assert any(i.startswith("activations/layers") for i in free)
    assert not any(i.startswith(("optimizer/layers", "activations/layers")) for i in frozen)


def test_a_frozen_module_has_no_states() -> None:
    """A name within the blocks freezes that module alone."""
    found = rows(LLAMA, seq_len=100, freeze=["self_attn"])
    assert not any(i.startswith("optimizer/") and i.endswith("self_attn") for i in found)
    assert any(i.startswith("optimizer/") and i.endswith("mlp") for i in found)


def test_a_name_that_no_parameter_has_is_refused() -> None:
    """A slip of the pen is not ignored."""
    with pytest.raises(BadInput, match=r"train\.freeze: .*'self_atn'.*self_attn"):
        rows(LLAMA, freeze=["self_atn"])


def test_sequences_as_long_as_the_window_have_a_mask() -> None:
    """Below the window of 512 SDPA is causal; from it on the layers with a window are given a mask and repeated keys and values."""
    short, long = (rows("google/gemma-3-1b-it", seq_len=n, precision="bf16") for n in (511, 512))
    windowed, full = (next(i for i in short if i.startswith("activations/layers") and f".{n}" in i and i.endswith("self_attn")) for n in ("0", "5/"))
    assert long[windowed] > 1.05 * short[windowed]
    assert long[full] < 1.01 * short[full]


def test_what_lies_beside_a_small_tensor_takes_whole_blocks() -> None:
    """Of a norm of 40 numbers both moments, 160 bytes each, and the gradient take a block of 512 bytes each, as the allocator gives it."""
    shape = {"family": "llama", "layers": 2, "hidden": 40, "ffn": 80, "heads": 4, "vocab": 100}
    train = {"framework": "pytorch", "micro_batch": 1, "seq_len": 8, "precision": "fp32"}
    ledger = estimate({"model": {"shape": shape}, "train": train}).worst.ledger
    found = {entry.id: entry.bytes for entry in ledger if "optimizer" in entry.phases}
    assert found["optimizer/norm/model"] == 2 * 512
    assert found["gradients/norm/model"] == 512
