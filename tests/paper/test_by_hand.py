"""The hand calculation of a whole job: the equations of the book, put together."""

from __future__ import annotations

import pytest

from everybyte.basics.errors import Unsupported
from everybyte.job import Job, read_job
from everybyte.textbook import activations, inference
from everybyte.textbook.estimate import Outline, textbook_bytes, textbook_ledger

LLAMA_2_13B = Outline(P=13_015_864_320, trainable=13_015_864_320, L=40, h=5120, a=40, k=40, d=128, V=32000, context=4096)
LLAMA_31_8B = Outline(P=8_030_261_248, trainable=8_030_261_248, L=32, h=4096, a=32, k=8, d=128, V=128256, context=131072)


def job(gpus: int = 1, **parts: object) -> Job:
    """A job of these parts."""
    return read_job({"model": {"shape": {"family": "llama"}}, "hardware": {"gpus": gpus}, **parts})


def sizes(asked: Job, model: Outline) -> dict[str, int]:
    """Bytes by row."""
    return {e.id: e.bytes for e in textbook_ledger(asked, model).entries}


def test_13b_under_zero_2_on_eight_ranks() -> None:
    """The worked case of 13B on 8 x 40 GB: 26.0 GB of weights and 22.8 GB of shards, which does not fit."""
    rows = sizes(job(8, train={"micro_batch": 1, "seq_len": 1024, "precision": "bf16-master", "sharding": "zero2", "recompute": "full"}), LLAMA_2_13B)
    assert rows["weights"] == 2 * LLAMA_2_13B.P
    assert rows["gradients"] + rows["optimizer"] == pytest.approx(14 * LLAMA_2_13B.P / 8, rel=1e-9)
    assert rows["activations/layer inputs"] == 2 * 1024 * 5120 * 40


def test_full_training_in_fp32_is_16_bytes_a_parameter() -> None:
    """Weights, gradients and moments of fp32 and of autocast are 16 bytes a parameter; activations come on top."""
    for precision in ("fp32", "bf16-mixed"):
        rows = sizes(job(train={"micro_batch": 1, "seq_len": 128, "precision": precision}), LLAMA_31_8B)
        assert rows["weights"] + rows["gradients"] + rows["optimizer"] == 16 * LLAMA_31_8B.P


def test_pure_16_bit_training_is_8_bytes_a_parameter() -> None:
    """Without a master copy the moments have the type of the weights: 2 + 2 + 4 bytes a parameter."""
    rows = sizes(job(train={"seq_len": 128, "precision": "bf16"}), LLAMA_31_8B)
    assert rows["weights"] + rows["gradients"] + rows["optimizer"] == 8 * LLAMA_31_8B.P


def test_eager_attention_keeps_the_scores() -> None:
    """Only attention that stores its score matrix pays the term with s twice."""
    train = {"micro_batch": 1, "seq_len": 4096, "precision": "bf16"}
    eager, sdpa = (sizes(job(train=train | {"attention": a}), LLAMA_31_8B)["activations/layers"] for a in ("eager", "sdpa"))
    assert eager == 32 * activations.korthikanti_none(s=4096, b=1, h=4096, a=32)
    assert eager - sdpa == 32 * 5 * 32 * 4096 * 4096


def test_an_adapter_pays_states_for_itself_alone() -> None:
    """LoRA: gradients and moments of the adapter only, and a packed base of 4 bits and a byte of scale for 64 weights."""
    model = LLAMA_31_8B._replace(trainable=41_943_040)
    rows = sizes(job(train={"seq_len": 512, "adapter": {"kind": "lora", "rank": 16}, "quantization": {"format": "nf4"}}), model)
    assert rows["optimizer"] == 8 * 41_943_040
    assert rows["weights"] == pytest.approx((4 / 8 + 1 / 64) * model.P, rel=1e-9)


def test_generation_is_weights_a_fifth_and_the_cache() -> None:
    """Serving by hand: 1.2 times the weights and the cache at full context."""
    asked = job(serve={"engine": "transformers", "weights": "bf16", "context": 131072, "sequences": 1})
    cache = inference.kv_gqa(e=2, L=32, k=8, d=128, s=131072, b=1)
    assert textbook_bytes(asked, LLAMA_31_8B) == inference.inference_rule(weights=2 * LLAMA_31_8B.P) + cache


def test_quantised_cache_and_weights_have_their_blocks() -> None:
    """q8_0 stores 34 bytes for 32 numbers, in the cache as in the weights."""
    asked = job(serve={"engine": "llama.cpp", "weights": "q8_0", "kv_dtype": "q8_0", "context": 1024})
    rows = sizes(asked, LLAMA_31_8B)
    assert rows["weights"] == LLAMA_31_8B.P * 34 // 32
    assert rows["cache"] == inference.kv_gqa(e=1, L=32, k=8, d=128, s=1024, b=1) * 34 // 32


def test_every_row_has_formula_and_source() -> None:
    """Rows of the hand calculation carry what rows of every ledger carry, and their numbers can be put in."""
    for entry in textbook_ledger(job(2, train={"seq_len": 256, "mesh": {"tp": 2, "sp": True}, "precision": "bf16"}), LLAMA_31_8B).entries:
        assert entry.source
        assert entry.symbols
        assert entry.numbers() != entry.formula


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ({"train": {"optimizer": {"name": "muon"}}}, "train.optimizer.name"),
        ({"train": {"quantization": {"format": "quanto"}}}, "train.quantization.format"),
        ({"serve": {"engine": "exllama", "weights": "exl3"}}, "serve.weights.format"),
    ],
)
def test_what_the_book_does_not_know_is_refused(parts: dict[str, object], path: str) -> None:
    """An optimizer or format without an equation is refused with its place, not guessed."""
    with pytest.raises(Unsupported) as refused:
        textbook_bytes(job(**parts), LLAMA_31_8B)
    assert refused.value.path == path
