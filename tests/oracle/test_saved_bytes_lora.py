"""What a decoder layer with low-rank adapters keeps for backward, against peft on the CPU, to the byte."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from decoders import VOCAB, Shape, config_of, model_of, network_of
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from saved_bytes import kept_by

from everybyte.basics.dtypes import BF16, FP32
from everybyte.layers.network import hidden_dims, write
from everybyte.layers.recording.setup import Adapter, Kernels, Setup
from everybyte.layers.recording.size import Batch, Point

SMALL, LARGE = Shape(2, 32, 96, 8, 2, 16, 176), Shape(1, 64, 160, 4, 4, 32, 384)
RANKS = {96: 4, 160: 8}
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
QV = ("q_proj", "v_proj")


def measured(family: str, shape: Shape, targets: tuple[str, ...], rank: int, dropout: float, wide: bool, amp: bool) -> int:
    """Bytes that one more layer keeps; the first layer is left out, as its input needs no gradient."""
    totals = []
    for layers in (2, 3):
        model = model_of(config_of(family, shape, layers), torch.bfloat16)
        setting = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=8, lora_dropout=dropout, target_modules=list(targets))
        adapted = get_peft_model(model, setting, autocast_adapter_dtype=wide).train()
        totals.append(sum(size for size, _, _ in kept_by(adapted, torch.randint(3, VOCAB, shape[:2]), amp).values()))
    return totals[1] - totals[0]


def predicted(family: str, shape: Shape, targets: tuple[str, ...], rank: int, dropout: float, wide: bool, amp: bool) -> int:
    """The same by our account: a frozen bf16 base, adapters in fp32 or bf16."""
    network = network_of(config_of(family, shape, 2))
    adapter = Adapter("lora", rank, targets, FP32 if wide else BF16, dropout)
    setup = Setup(
        weights=BF16,
        compute=BF16 if amp else None,
        trainable=(),
        adapter=adapter,
        kernels=Kernels(device="cpu"),
        single=shape.b == 1,
    )
    tally = write(network.runs[-1].layer, setup, hidden_dims(network.hidden), BF16).tally
    return tally.kept_size.at(Point(Batch(shape.b, shape.s, shape.s)))


def recorded() -> list[Any]:
    """The 32 measurements in a file: all linear layers, dropout, fp32 adapters, autocast, h, bytes."""
    with (Path(__file__).parent / "data" / "saved_bytes_lora.csv").open() as file:
        return [
            (row["all_linear"] == "True", float(row["dropout"]), row["fp32_adapters"] == "True", row["autocast"] == "True", int(row["h"]), int(row["bytes"]))
            for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize(("all_linear", "dropout", "wide", "amp", "h", "expected"), recorded())
def test_measured_table(all_linear: bool, dropout: float, wide: bool, amp: bool, h: int, expected: int) -> None:
    """The recorded measurements are met to the byte, by PyTorch today and by us."""
    shape, targets = SMALL if h == 96 else LARGE, LINEAR if all_linear else QV
    case = ("llama", shape, targets, RANKS[h], dropout, wide, amp)
    assert predicted(*case) == measured(*case) == expected


@pytest.mark.parametrize(("family", "targets"), [("qwen3", LINEAR), ("gemma3", LINEAR), ("opt", ("q_proj", "fc1", "fc2")), ("phi3", ("qkv_proj", "down_proj"))])
@pytest.mark.parametrize("wide", [False, True], ids=["bf16 adapters", "fp32 adapters"])
def test_other_families(family: str, targets: tuple[str, ...], wide: bool) -> None:
    """Adapters follow the same rules in other blocks: biases, joined projections, ReLU."""
    shape = SMALL.square._replace(k=8) if family == "opt" else SMALL.square if family == "phi3" else SMALL
    case = (family, shape, targets, 4, 0.0, wide, False)
    assert predicted(*case) == measured(*case)


@settings(max_examples=12, deadline=None)
@given(
    targets=st.sets(st.sampled_from(LINEAR), min_size=1),
    rank=st.integers(1, 12),
    dropout=st.sampled_from([0.0, 0.1]),
    wide=st.booleans(),
    amp=st.booleans(),
    b=st.integers(1, 2),
    s=st.integers(2, 24),
)
def test_any_targets(targets: set[str], rank: int, dropout: float, wide: bool, amp: bool, b: int, s: int) -> None:
    """Whichever linear layers have an adapter, we count what PyTorch keeps."""
    case = ("llama", SMALL._replace(b=b, s=s), tuple(sorted(targets)), rank, dropout, wide, amp)
    assert predicted(*case) == measured(*case)
