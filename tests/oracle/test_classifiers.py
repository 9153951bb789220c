"""Decoders that classify sequences: parameters as transformers has them on the meta device, and no logits over the vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from everybyte import estimate
from everybyte.models.count import parameter_count
from everybyte.models.registry import build

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
}
FAMILIES = [("Llama", "llama"), ("Qwen2", "qwen2"), ("Mistral", "mistral"), ("Qwen3", "qwen3")]


def config(family: str, kind: str, labels: int) -> dict[str, Any]:
    """A small config.json."""
    return {**SIZES, "architectures": [f"{family}ForSequenceClassification"], "model_type": kind, "num_labels": labels, "head_dim": 16}


@pytest.mark.parametrize(("family", "kind"), FAMILIES)
@pytest.mark.parametrize("labels", [1, 7])
def test_parameters_of_classifiers(family: str, kind: str, labels: int) -> None:
    """Every parameter of transformers' class is counted: the decoder's, and a score of h numbers for each label."""
    import transformers

    fields = config(family, kind, labels)
    with torch.device("meta"):
        made = getattr(transformers, f"{family}ForSequenceClassification")(getattr(transformers, f"{family}Config")(**fields))
    assert parameter_count(build(fields)) == sum(p.numel() for p in made.parameters())


def test_a_classifier_has_no_logits() -> None:
    """Nothing of the size of the vocabulary is made by the loss, so that it needs less than the same decoder that models language."""
    train = {"framework": "transformers", "micro_batch": 8, "seq_len": 128, "precision": "bf16"}
    fields = {**config("Llama", "llama", 2), "vocab_size": 50_000}
    classifier = estimate({"model": {"config": fields}, "train": train})
    language = estimate({"model": {"config": {**fields, "architectures": ["LlamaForCausalLM"]}}, "train": train})
    assert not any("head/loss" in row.id for row in classifier.ranks[0].ledger)
    assert classifier.figures["peak.allocated"] < language.figures["peak.allocated"] - 8 * 128 * 50_000 * 2
