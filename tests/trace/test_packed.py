"""Packed bases and optimizers of bitsandbytes: their traces hold the bytes that the library makes of real tensors, and what its layers make and keep."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
import torch
from test_conformance import CONFIGS, LAYERS, LORA, SIZES, rows

from everybyte import estimate
from everybyte.allocator.caching import MIN_BLOCK
from everybyte.basics.errors import BadInput
from everybyte.basics.units import round_up
from everybyte.ledger.answer import Answer
from everybyte.measure.truth import load_records
from everybyte.trace.jobs.program import asked_of
from everybyte.trace.request import Traced, TraceRequest
from everybyte.trace.results.answer import answer_of
from everybyte.trace.run import run

pytestmark = pytest.mark.usefixtures("compiler")
bitsandbytes = pytest.importorskip("bitsandbytes")

HIDDEN, FFN, TOKENS = SIZES["hidden_size"], SIZES["intermediate_size"], 2 * 256
MLP = ((FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN))
"""Shapes (out, in) of the linear layers of a layer's feed-forward part."""
DEQUANTISE = "bitsandbytes.dequantize_4bit.default"
FORMATS: dict[str, dict[str, Any]] = {
    "nf4": {"format": "nf4"},
    "nf4-double": {"format": "nf4", "double": True},
    "fp4": {"format": "fp4"},
    "int8": {"format": "int8"},
}


@cache
def traced(name: str, **settings: str) -> tuple[TraceRequest, Traced, Answer]:
    """A tiny Llama on a packed base, or with another optimizer."""
    quantization = {"quantization": {**FORMATS[name], "kbit_prep": False}, "adapter": LORA} if name else {}
    train = {"framework": "pytorch", "micro_batch": 2, "seq_len": 256, "precision": "bf16", **quantization, **settings}
    asked = asked_of({"model": {"config": CONFIGS["llama"]}, "hardware": {"gpu": "a100-80gb"}, "train": train})
    found = run(asked)
    return asked, found, answer_of(found, asked)


def real_bytes(shape: tuple[int, int], form: dict[str, Any]) -> int:
    """Blocks of all tensors of a layer that bitsandbytes packs on the CPU."""
    if form["format"] == "int8":
        eight = bitsandbytes.nn.Linear8bitLt(shape[1], shape[0], bias=False, has_fp16_weights=False).to("cpu")
        tensors = [eight.weight.CB, eight.weight.SCB]
    else:
        four = bitsandbytes.nn.Linear4bit(shape[1], shape[0], bias=False, quant_type=form["format"], compress_statistics=form.get("double", False)).to("cpu")
        states = [vars(state) for state in (four.weight.quant_state, four.weight.quant_state.state2) if state is not None]
        tensors = [four.weight.data, *(value for state in states for value in state.values() if isinstance(value, torch.Tensor))]
    return sum(round_up(tensor.nbytes, MIN_BLOCK) for tensor in tensors)


@pytest.mark.parametrize("name", [pytest.param("fp4", marks=pytest.mark.long), *(name for name in FORMATS if name != "fp4")])
def test_packed_weights_take_the_blocks_of_real_ones(name: str) -> None:
    """Packed numbers, scales, second scales and code tables: the layer's row of weights is what bitsandbytes makes of real weights, block for block."""
    _, _, answer = traced(name)
    assert rows(answer, "between_steps")["weights/layers/mlp"] == LAYERS * sum(real_bytes(shape, FORMATS[name]) for shape in MLP)


def test_a_weight_is_unpacked_for_each_product() -> None:
    """A dense copy in the type of the input is born for the forward product and again for the backward one, and gone before the next: one lives at a time."""
    _, found, _ = traced("nf4-double")
    copies = [birth for birth in found.births if birth.operation == DEQUANTISE]
    assert {birth.phase for birth in copies} == {"forward", "backward"}
    assert {birth.nbytes for birth in copies if birth.shape in MLP} == {2 * HIDDEN * FFN}
    for before, after in itertools.pairwise(copies):
        assert before.died is not None
        assert before.died <= after.born


def test_eight_bit_layers_keep_their_inputs() -> None:
    """Linear8bitLt holds its input until backward, which Linear4bit does not: for gate and up together one (tokens, hidden), for down one (tokens, ffn)."""
    four, eight = (rows(traced(name)[2], "loss") for name in ("nf4", "int8"))
    assert eight["activations/layers/mlp"] - four["activations/layers/mlp"] == LAYERS * TOKENS * FFN * 2
    norm = "activations/layers/post_attention_layernorm"
    assert eight[norm] - four[norm] == LAYERS * TOKENS * HIDDEN * 2


@pytest.mark.parametrize("optimizer", ["paged_adamw_8bit", *(pytest.param(name, marks=pytest.mark.long) for name in ("adamw-8bit", "lion-8bit"))])
def test_states_of_bitsandbytes_are_those_of_the_estimate(optimizer: str) -> None:
    """8-bit states with their scales, fp32 ones of small tensors, none where they are paged: each row is the estimate's but for the code tables, which all
    tensors share."""
    asked, _, answer = traced("", optimizer=optimizer)
    assert asked.job is not None
    ours, theirs = rows(answer, "between_steps"), rows(estimate(asked.job), "between_steps")
    states = [name for name in {*ours, *theirs} if name.startswith("optimizer")]
    assert states
    tables = {name: ours.get(name, 0) - theirs.get(name, 0) for name in states}
    assert sum(tables.values()) == (1024 if "lion" in optimizer else 2 * 1024)
    assert sorted(tables.values())[:-1] == [0] * (len(tables) - 1)


def test_an_answer_says_what_is_taken_for_granted_of_packed_layers() -> None:
    """Which release ran, and for 8-bit layers that no number is an outlier: their columns hang on values."""
    four, eight = (" ".join(traced(name)[2].assumptions) for name in ("nf4", "int8"))
    assert "unpacks" in four
    assert "outlier" in eight
    assert "bitsandbytes" in four


def test_experts_that_were_linear_layers_are_not_taken_for_joined_ones() -> None:
    """Releases of transformers before 5 packed the experts of a mixture; the installed one would leave them in 16 bit, so that such a job is refused."""
    train = {"framework": "transformers", "version": "transformers 4.48", "micro_batch": 1, "seq_len": 64, "precision": "bf16", "adapter": LORA}
    job = {"model": {"config": CONFIGS["mixtral"]}, "hardware": {"gpu": "a100-80gb"}, "train": {**train, "quantization": {"format": "nf4"}}}
    with pytest.raises(BadInput, match=r"train\.version"):
        asked_of(job)


@pytest.mark.long
@pytest.mark.parametrize("name", ["FM106", "fa-t4-smollm2-1.7b-b4-s1024-eager"])
def test_a_traced_record_is_what_was_measured(name: str) -> None:
    """Public QLoRA runs on one GPU, of the Trainer and of a plain loop, peak where their traces say, within 2 %."""
    record = next(record for record in load_records() if record["id"] == name)
    asked = asked_of(record["job"])
    figures = answer_of(run(asked), asked).figures
    for measured in record["measured"]:
        if measured["figure"] in ("peak.allocated", "static.allocated"):
            assert figures[measured["figure"]] == pytest.approx(measured["value"], rel=0.02)
