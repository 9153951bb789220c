"""Bytes that live at the highest moment of a whole step's forward and backward, against the allocator of PyTorch on the CPU."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from allocations import peak_of
from decoders import FAMILIES, VOCAB, Shape, config_of, model_of, network_of, shape_for
from usual import matrix

from everybyte.basics.dtypes import BF16, FP32
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.layers.recording.size import Batch
from everybyte.rules.step.recipe import Recipe, RecomputePlan
from everybyte.rules.step.timeline import StepTimeline

SHAPE = Shape(2, 96, 96, 8, 2, 16, 176)
LAYERS = 3
PER_TOKEN = 96
"""Bytes a token of ids, labels, positions and row sums that are not part of a layer."""
LEARNED_POSITIONS = {"gpt2", "opt"}
"""Families whose model holds the embeddings of tokens and of positions apart, as local variables, while the blocks run: not counted."""
TWO_MASKS = {"gemma3"}
"""Families that make a mask for each kind of layer: one is counted."""
FAMILIES_RUN = ["llama", "qwen2", "qwen3", "gpt2", "gpt-neox", "opt", "phi3", "gemma3", "starcoder2", "olmo2"]

STEPS = list(product(FAMILIES_RUN, ("eager", "sdpa"), (False, True), (False, True)))
CACHED = list(product(("llama", "gpt2", "gpt-neox", "phi3", "gemma3", "olmo2", "mixtral"), ("eager", "sdpa"), (False, True), ("forward", "backward")))


def real(family: str, shape: Shape, attention: str, amp: bool, recompute: bool, past: str = "none") -> tuple[int, int]:
    """Peaks of forward with the loss, and of backward, beside the weights. `past`: as in Kernels; "backward" holds the model's output so long."""
    model = model_of(config_of(family, shape, LAYERS, attention), torch.float32 if amp else torch.bfloat16)
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False, "preserve_rng_state": False})
    ids = torch.randint(3, VOCAB, shape[:2])

    def forward() -> dict[str, Any]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
            out = model(input_ids=ids, labels=ids, use_cache=past != "none")
        return out if past == "backward" else {"loss": out.loss}

    for _ in range(2):  # the first round warms kernels up
        model.zero_grad(set_to_none=True)
        up, out = peak_of(forward)
        down, _ = peak_of(out["loss"].backward, up.left)
    return up.highest, down.highest


def ours(family: str, shape: Shape, attention: str, amp: bool, recompute: bool, past: str = "none") -> tuple[int, int]:
    """The same by our account."""
    stream = FP32 if amp else BF16
    loss = "hf-outputs-alive" if past == "backward" else "hf"
    kernels = Kernels(attention=attention, device="cpu", loss=loss, past=past)  # type: ignore[arg-type]
    setup = Setup(weights=stream, compute=BF16 if amp else None, kernels=kernels, single=shape.b == 1)
    plan = RecomputePlan("non-reentrant") if recompute else RecomputePlan()
    timeline = StepTimeline(
        network_of(config_of(family, shape, LAYERS, attention)), Recipe(setup, Batch(shape.b, shape.s, shape.s), recompute=plan, stream=stream)
    )
    count = len(timeline.row)
    return timeline.forward(0, count).bytes, timeline.backward(0, count).bytes


def slack(family: str, shape: Shape, attention: str, amp: bool) -> int:
    """Bytes that a step may differ by, for tensors of the whole model."""
    tokens, size = shape.b * shape.s, 4 if amp else 2
    positions = 2 * tokens * shape.h * size if family in LEARNED_POSITIONS else 0
    mask = tokens * shape.s * size if family in TWO_MASKS and attention == "eager" else 0
    return PER_TOKEN * tokens + positions + mask


@pytest.mark.parametrize(("family", "attention", "amp", "recompute"), matrix(STEPS))
def test_peaks_of_a_step(family: str, attention: str, amp: bool, recompute: bool) -> None:
    """Forward with its loss and backward peak where PyTorch's allocator does, but for what each token costs outside the layers."""
    assert FAMILIES[family].sdpa or attention == "eager"
    shape = shape_for(family, SHAPE)
    allowed = slack(family, shape, attention, amp)
    for mine, theirs in zip(ours(family, shape, attention, amp, recompute), real(family, shape, attention, amp, recompute), strict=True):
        assert abs(mine - theirs) <= allowed, f"{mine:,} against {theirs:,}"


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("amp", [False, True], ids=["bf16", "autocast"])
def test_peaks_of_weighted_experts(amp: bool, recompute: bool) -> None:
    """Rows of experts times fp32 weights: both products are there when one is cast; what was recomputed for them is not, what forward kept still is."""
    shape = shape_for("mixtral", SHAPE)
    allowed = slack("mixtral", shape, "sdpa", amp)
    for mine, theirs in zip(ours("mixtral", shape, "sdpa", amp, recompute), real("mixtral", shape, "sdpa", amp, recompute), strict=True):
        assert abs(mine - theirs) <= allowed, f"{mine:,} against {theirs:,}"


@pytest.mark.parametrize(("family", "attention", "amp", "past"), matrix(CACHED))
def test_peaks_of_a_step_with_the_cache_on(family: str, attention: str, amp: bool, past: str) -> None:
    """config.use_cache left on copies keys and values, and holds them as long as somebody holds the model's output: to the same bytes."""
    shape = shape_for(family, SHAPE)
    allowed = slack(family, shape, attention, amp)
    for mine, theirs in zip(ours(family, shape, attention, amp, False, past), real(family, shape, attention, amp, False, past), strict=True):
        assert abs(mine - theirs) <= allowed, f"{mine:,} against {theirs:,}"


FEW = Shape(2, 4, 96, 8, 2, 16, 16)
TIED = ["gpt2", "gemma3"]
"""Families whose head has the embedding's table."""


@pytest.mark.parametrize("amp", [False, True], ids=["bf16", "autocast"])
@pytest.mark.parametrize("family", TIED)
def test_gradients_of_a_tied_table(family: str, amp: bool) -> None:
    """With few tokens backward peaks where the embedding's gradient meets the head's: three tables, or two where autocast's cast made the head's anew."""
    allowed = PER_TOKEN * FEW.b * FEW.s
    mine, theirs = ours(family, FEW, "sdpa", amp, recompute=False)[1], real(family, FEW, "sdpa", amp, recompute=False)[1]
    assert abs(mine - theirs) <= allowed, f"{mine:,} against {theirs:,}"
    assert allowed < VOCAB * FEW.h // 2
