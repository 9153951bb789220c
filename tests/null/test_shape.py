"""`model: {shape: ...}`: networks by their sizes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import estimate
from everybyte.basics.errors import BadInput
from everybyte.models.count import active_count, parameter_count
from everybyte.models.shape import network_of_shape

GPT2_XL = {
    "family": "gpt",
    "layers": 48,
    "hidden": 1600,
    "ffn": 6400,
    "heads": 25,
    "vocab": 50257,
    "max_positions": 1024,
}
LLAMA_8B = {
    "family": "llama",
    "layers": 32,
    "hidden": 4096,
    "ffn": 14336,
    "heads": 32,
    "kv_heads": 8,
    "vocab": 128256,
    "max_positions": 131072,
}
MIXTRAL = {
    "family": "moe",
    "layers": 32,
    "hidden": 4096,
    "ffn": 14336,
    "heads": 32,
    "kv_heads": 8,
    "vocab": 32000,
    "experts": 8,
    "top_k": 2,
    "moe_ffn": 14336,
}
V2_LITE = {
    "family": "mla",
    "layers": 27,
    "hidden": 2048,
    "ffn": 10944,
    "heads": 16,
    "vocab": 102400,
    "experts": 64,
    "top_k": 6,
    "moe_ffn": 1408,
    "shared_expert_ffn": 2816,
    "moe_layers": list(range(1, 27)),
    "mla": {"q_lora": 0, "kv_lora": 512, "qk_nope": 128, "qk_rope": 64, "v": 128},
}


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [(GPT2_XL, 1557611200), (LLAMA_8B, 8030261248), (MIXTRAL, 46702792704), (V2_LITE, 15706484224)],
    ids=["GPT-2 XL", "Llama 3.1 8B", "Mixtral 8x7B", "DeepSeek-V2-Lite"],
)
def test_a_shape_has_the_parameters_of_the_model_that_it_describes(shape: dict[str, Any], parameters: int) -> None:
    """Known models written as shapes count to their parameters on the meta device (catalogue, params_meta)."""
    assert parameter_count(network_of_shape(shape)) == parameters


def test_a_hybrid_follows_its_pattern() -> None:
    """Nemotron 3 Nano as a shape: 23 Mamba-2, 6 attention and 23 expert layers, one mixer each."""
    shape = {
        "family": "hybrid",
        "layers": 52,
        "hidden": 2688,
        "ffn": 1856,
        "heads": 32,
        "kv_heads": 2,
        "head_dim": 128,
        "vocab": 131072,
        "experts": 128,
        "top_k": 6,
        "moe_ffn": 1856,
        "shared_expert_ffn": 3712,
        "ssm": {"heads": 64, "head_dim": 64, "state": 128, "groups": 8},
        "pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    }
    assert parameter_count(network_of_shape(shape)) == 31577937344
    with pytest.raises(BadInput, match="each of the 52 layers"):
        network_of_shape({**shape, "pattern": "ME"})


def test_bert_as_a_shape() -> None:
    """The family bert is BERT with its masked-language head."""
    shape = {"family": "bert", "layers": 12, "hidden": 768, "ffn": 3072, "heads": 12, "vocab": 30522, "max_positions": 512}
    assert parameter_count(network_of_shape(shape)) == 109514298


def test_padded_vocabulary_is_what_lies_in_memory() -> None:
    """padded_vocab replaces vocab in the embedding; a smaller one is refused."""
    padded = network_of_shape({**GPT2_XL, "padded_vocab": 50304})
    assert parameter_count(padded) == 1557611200 + 47 * 1600
    with pytest.raises(BadInput, match="padded_vocab"):
        network_of_shape({**GPT2_XL, "padded_vocab": 50000})


def test_only_the_chosen_experts_are_active() -> None:
    """One token of Mixtral uses two of eight experts in each layer."""
    assert parameter_count(network_of_shape(MIXTRAL)) - active_count(network_of_shape(MIXTRAL)) == 32 * 6 * 3 * 4096 * 14336


def test_one_block_of_multi_token_prediction_adds_a_layer_two_norms_and_a_projection() -> None:
    """Each depth of mtp is one more layer, a projection from 2h to h and three norms; it is not counted as a layer."""
    plain, more = network_of_shape(LLAMA_8B), network_of_shape({**LLAMA_8B, "mtp": 1})
    layer = 218112000
    assert parameter_count(more) - parameter_count(plain) == layer + 2 * 4096 * 4096 + 3 * 4096
    assert more.layers == plain.layers == 32


def test_sliding_windows_follow_the_pattern() -> None:
    """window_pattern 6: five layers see the window, the sixth sees all."""
    network = network_of_shape({**LLAMA_8B, "layers": 12, "sliding_window": 1024, "window_pattern": 6})
    assert [(run.count, run.layer.mixer.window) for run in network.runs] == [(5, 1024), (1, 0), (5, 1024), (1, 0)]


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        ({"family": "lama"}, "model.shape.family", "did you mean llama"),
        ({"layer": 3}, "model.shape.layer", "did you mean layers"),
        ({"layers": None}, "model.shape.layers", "is missing"),
        ({"layers": 0}, "model.shape.layers", "whole number from 1"),
        ({"layers": True}, "model.shape.layers", "whole number"),
        ({"layers": 10**9}, "model.shape.layers", "at most"),
        ({"hidden": -4}, "model.shape.hidden", "whole number"),
        ({"hidden": 2**50}, "model.shape.hidden", "2^40"),
        ({"kv_heads": 5}, "model.shape.kv_heads", "must divide heads"),
        ({"heads": 7, "kv_heads": 7}, "model.shape.heads", "must divide hidden"),
        ({"activation": "swiglue"}, "model.shape.activation", "did you mean swiglu"),
        ({"norm": "batchnorm"}, "model.shape.norm", "layernorm, rmsnorm"),
        ({"position": "learned", "max_positions": None}, "model.shape.max_positions", "is missing"),
        ({"bias": "yes"}, "model.shape.bias", "true or false"),
        ({"top_k": 2}, "model.shape.top_k", "needs experts"),
        ({"experts": 2, "top_k": 4}, "model.shape.top_k", "at most experts"),
        ({"experts": 4, "top_k": 2, "moe_layers": [40]}, "model.shape.moe_layers", "40 is not among them"),
        ({"mla": {"kv_lora": 512, "qk_nop": 2}}, "model.shape.mla.qk_nop", "did you mean qk_nope"),
        ({"window_pattern": 6}, "model.shape.window_pattern", "needs sliding_window"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(change: dict[str, Any], place: str, words: str) -> None:
    """Unknown keys, missing and impossible sizes, and keys that contradict one another name their place and what is allowed."""
    with pytest.raises(BadInput) as caught:
        network_of_shape({**LLAMA_8B, **change})
    assert caught.value.path == place
    assert words in caught.value.message


def test_a_gpt_drops_where_the_job_says_so() -> None:
    """Eager attention of a plain loop: the probabilities are dropped, which keeps a mask of one byte and a second copy in 16 bits, and both branches end in a
    mask; without a rate nothing is dropped, and a llama has no place for it."""
    shape = {**GPT2_XL, "layers": 12, "hidden": 768, "ffn": 3072, "heads": 12}
    train = {"framework": "pytorch", "precision": "bf16", "micro_batch": 8, "seq_len": 1024, "attention": "eager"}

    def peak(family: str, **more: Any) -> float:
        return estimate({"model": {"shape": {**shape, "family": family}}, "train": {**train, **more}}).figures["peak.allocated"]

    scores, states = 12 * 8 * 12 * 1024 * 1024, 12 * 8 * 1024 * 768
    assert peak("gpt", dropout=0.1) - peak("gpt") == pytest.approx(3 * scores + 2 * states, rel=0.02)
    assert peak("gpt", dropout=0.0) == peak("gpt")
    assert peak("llama", dropout=0.1) == peak("llama")
