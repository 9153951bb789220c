"""What one decoder layer keeps for backward: every dense family, against PyTorch on the CPU, to the byte."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from decoders import FAMILIES, Shape, measured, predicted, shape_for
from hypothesis import given, settings
from hypothesis import strategies as st

WIDE = Shape(b=2, s=32, h=96, a=8, k=2, d=16, f=176)
ONE = Shape(b=1, s=24, h=64, a=4, k=1, d=32, f=144)
CASES = [(family, attention) for family, kind in FAMILIES.items() for attention in ("eager", "sdpa") if attention == "eager" or kind.sdpa]


def recorded() -> list[tuple[str, str, bool, Shape, int]]:
    """Measurements in a file: family, kernel, autocast, shape, bytes."""
    with (Path(__file__).parent / "data" / "saved_bytes.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [(row["model"], row["attention"], row["precision"] == "amp", Shape(*(int(row[k]) for k in Shape._fields)), int(row["bytes"])) for row in rows]


@pytest.mark.parametrize("amp", [False, True], ids=["bf16", "autocast"])
@pytest.mark.parametrize(("family", "attention"), CASES)
def test_a_layer_keeps_what_pytorch_keeps(family: str, attention: str, amp: bool) -> None:
    """Every family with every kernel keeps to the byte what we say, in bf16 and under autocast, with A ≠ h and grouped heads where it can."""
    if family == "mixtral" and amp:
        pytest.skip("the CPU runs the experts' products in fp32 under autocast")
    shape = shape_for(family, WIDE)
    assert predicted(family, shape, attention, amp) == measured(family, shape, attention, amp)


@pytest.mark.parametrize(("family", "attention"), CASES)
def test_one_sequence_with_one_key_head(family: str, attention: str) -> None:
    """A single key head of a single sequence stays a view: so does what we count."""
    shape = shape_for(family, ONE)
    assert predicted(family, shape, attention, amp=False) == measured(family, shape, attention, amp=False)


@pytest.mark.parametrize(("family", "attention", "amp", "shape", "expected"), recorded())
def test_measured_table(family: str, attention: str, amp: bool, shape: Shape, expected: int) -> None:
    """The recorded measurements (torch 2.13, transformers 5.24) are met to the byte."""
    assert predicted(family, shape, attention, amp) == expected


@pytest.mark.parametrize("amp", [False, True], ids=["bf16", "autocast"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "gpt-neox", "opt", "phi3"])
def test_recomputed_layer_keeps_its_input(family: str, amp: bool) -> None:
    """A checkpointed layer (non-reentrant) keeps its input and nothing else: e·n·h."""
    shape = shape_for(family, WIDE)
    kept = (4 if amp else 2) * shape.b * shape.s * shape.h
    assert predicted(family, shape, "eager", amp, recompute="non-reentrant") == measured(family, shape, "eager", amp, recompute=True) == kept


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt2", "gemma3", "phi3", "gpt-neox", "opt", "olmo2", "cohere"])
def test_padded_batch(family: str) -> None:
    """A padded batch gives SDPA a mask: keys and values are copied to all heads, and each layer keeps its own mask in the type of q."""
    shape = shape_for(family, WIDE)
    assert predicted(family, shape, "sdpa", amp=False, masked=True) == measured(family, shape, "sdpa", amp=False, padded=True)


@pytest.mark.parametrize("family", ["mistral", "phi3", "starcoder2", "ministral"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_sequence_longer_than_the_window(family: str, attention: str) -> None:
    """Past the sliding window SDPA gets an explicit mask too."""
    shape = shape_for(family, WIDE)
    ours = predicted(family, shape, attention, amp=False, past_window=True, sliding_window=8)
    assert ours == measured(family, shape, attention, amp=False, sliding_window=8)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Small shapes with A ≠ h, any grouping and any batch."""
    k = draw(st.sampled_from([1, 2, 4]))
    a = k * draw(st.sampled_from([1, 2, 3]))
    h = a * draw(st.sampled_from([4, 8, 12]))
    return Shape(draw(st.integers(1, 3)), draw(st.integers(2, 40)), h, a, k, draw(st.sampled_from([8, 16, 24])), draw(st.integers(3, 200)))


@settings(max_examples=25, deadline=None)
@given(
    shape=shapes(),
    family=st.sampled_from(["llama", "qwen3", "gemma", "gemma2", "gemma3", "ministral3", "hunyuan"]),
    attention=st.sampled_from(["eager", "sdpa"]),
    amp=st.booleans(),
)
def test_any_shape(shape: Shape, family: str, attention: str, amp: bool) -> None:
    """Whatever the shape, we count what PyTorch keeps."""
    attention = attention if FAMILIES[family].sdpa else "eager"
    assert predicted(family, shape, attention, amp) == measured(family, shape, attention, amp)
