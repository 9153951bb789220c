"""What one rank holds under FSDP2, against PyTorch's own `fully_shard` on a process group whose other ranks are not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import peft
import pytest
import torch
from allocations import peak_of
from decoders import VOCAB, Shape, config_of, model_of, network_of
from msgspec.structs import replace
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from everybyte.basics.dtypes import BF16, FP32
from everybyte.layers.recording.setup import Adapter, Kernels, Setup
from everybyte.layers.recording.size import Batch
from everybyte.rules.sharding.fsdp2 import Fsdp2
from everybyte.rules.sharding.fsdp_units import Units
from everybyte.rules.step.recipe import Recipe, RecomputePlan
from everybyte.rules.step.timeline import StepTimeline

LAYERS = 5
PER_TOKEN = 112
"""Bytes a token of ids, labels, positions, masks and row sums that are no part of a layer."""
FEW, MANY = Shape(2, 4, 96, 8, 2, 16, 176), Shape(2, 32, 96, 8, 2, 16, 176)
"""With few tokens the gathered units are what counts, with many the activations."""
TARGETS = ("q_proj", "v_proj")


@dataclass(frozen=True)
class Case:
    """One way of training."""

    shape: Shape = FEW
    ranks: int = 4
    mixed: bool = True
    """bf16 weights and an fp32 sum of gradients over fp32 shards; else all is fp32."""
    reshards: bool = True
    recompute: bool = False
    reentrant: bool = False
    ends_apart: bool = False
    """Embedding and head are units of their own, which leaves the root one norm."""
    lora: bool = False

    def __str__(self) -> str:
        flags = [name for name in ("mixed", "reshards", "recompute", "reentrant", "ends_apart", "lora") if getattr(self, name)]
        return "-".join([f"{self.shape.b * self.shape.s} tokens", f"{self.ranks} ranks", *flags])


CASES = (
    *(Case(shape, mixed=mixed, reshards=reshards) for shape in (FEW, MANY) for mixed in (True, False) for reshards in (True, False)),
    *(Case(MANY, recompute=True, mixed=mixed, reshards=reshards) for mixed in (True, False) for reshards in (True, False)),
    *(Case(shape, recompute=True, reentrant=True) for shape in (FEW, MANY)),
    *(Case(FEW, ranks=ranks) for ranks in (2, 5, 64)),
    *(Case(FEW, ends_apart=True, reshards=reshards) for reshards in (True, False)),
    *(Case(shape, lora=True, recompute=recompute) for shape in (FEW, MANY) for recompute in (True, False)),
)


@contextmanager
def ranks(case: Case) -> Iterator[None]:
    """The process group of a case, which is gone afterwards."""
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=case.ranks)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def sharded(case: Case) -> Any:
    """A small Llama whose blocks and root are units."""
    model = model_of(config_of("llama", case.shape, LAYERS), torch.float32)
    if case.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": case.reentrant, "preserve_rng_state": False})
    whole = model
    if case.lora:
        whole = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=list(TARGETS)))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if case.mixed else MixedPrecisionPolicy()
    more: dict[str, Any] = {"mesh": init_device_mesh("cpu", (case.ranks,)), "mp_policy": policy}
    if not case.reshards:
        more["reshard_after_forward"] = False
    units = [*model.model.layers, *([model.model.embed_tokens, model.lm_head] if case.ends_apart else [])]
    for unit in (*units, whole):
        fully_shard(unit, **more)
    return whole


def real(case: Case) -> tuple[int, int]:
    """Peaks of forward with the loss, and of backward, beside the shards."""
    model = sharded(case)
    ids = torch.randint(3, VOCAB, case.shape[:2])

    def forward() -> torch.Tensor:
        return model(input_ids=ids, labels=ids, use_cache=False).loss

    for _ in range(2):  # the first round warms kernels up
        model.zero_grad(set_to_none=True)
        up, loss = peak_of(forward)
        down, _ = peak_of(loss.backward, up.left)
    return up.highest, down.highest


def recipe_of(case: Case) -> Recipe:
    """The same as a recipe."""
    kind = BF16 if case.mixed else FP32
    adapter = Adapter("lora", 8, TARGETS, kind) if case.lora else None
    trainable, input_grads = ((), case.recompute) if case.lora else (("*",), False)
    setup = Setup(weights=kind, kernels=Kernels(device="cpu"), single=False, adapter=adapter, trainable=trainable, input_grads=input_grads)
    plan = RecomputePlan("reentrant" if case.reentrant else "non-reentrant") if case.recompute else RecomputePlan()
    return Recipe(setup, Batch(case.shape.b, case.shape.s, case.shape.s), recompute=plan, stream=kind)


def layout_of(case: Case) -> Fsdp2:
    """The same as a layout."""
    units = Units(("embed", "head") if case.ends_apart else ())
    return Fsdp2(degree=case.ranks, stored=FP32, stored_frozen=FP32, reduce=FP32, units=units, reshards=case.reshards)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_peaks_beside_the_shards(case: Case) -> None:
    """Forward and backward peak where PyTorch's allocator does: gathered units, buffers, whole gradients and their sum among the step's own tensors."""
    network = network_of(config_of("llama", case.shape, LAYERS))
    timeline = StepTimeline(network, recipe_of(case), layout_of(case))
    count = len(timeline.row)
    # the model's forward holds the embedding's result in a variable while the blocks run
    slack = (PER_TOKEN + 4 * case.shape.h) * case.shape.b * case.shape.s
    with ranks(case):
        measured = real(case)
    for mine, theirs in zip((timeline.forward(0, count), timeline.backward(0, count)), measured, strict=True):
        assert abs(mine.bytes - theirs) <= slack, f"{mine.moment} of {timeline.row[mine.segment].label}: {mine.bytes:,} against {theirs:,}"


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "fp32"])
def test_whole_gradients_of_earlier_micro_batches(mixed: bool) -> None:
    """Without the exchange of gradients (set_requires_gradient_sync(False)) they stay whole, in the type of the sum, until the last micro-batch."""
    case = Case(FEW, mixed=mixed)
    with ranks(case):
        model = sharded(case)
        ids = torch.randint(3, VOCAB, case.shape[:2])

        def step() -> None:
            for exchanges in (False, True):
                model.set_requires_gradient_sync(exchanges)
                model(input_ids=ids, labels=ids, use_cache=False).loss.backward()

        for _ in range(2):
            model.zero_grad(set_to_none=True)
            theirs, _ = peak_of(step)
    network = network_of(config_of("llama", case.shape, LAYERS))
    recipe, layout = replace(recipe_of(case), gradients_live="always"), replace(layout_of(case), unsharded=True)
    timeline = StepTimeline(network, recipe, layout)
    earlier = sum(line.bytes for line in layout.accumulated(network, recipe))
    count = len(timeline.row)
    mine = earlier + max(timeline.forward(0, count).bytes, timeline.backward(0, count).bytes)
    assert abs(mine - theirs.highest) <= 0.02 * theirs.highest, f"{mine:,} against {theirs.highest:,}"
