"""What one rank holds under FSDP1, against PyTorch's own FullyShardedDataParallel on a process group whose other ranks are not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import peft
import pytest
import torch
from allocations import peaks_of_parts
from decoders import VOCAB, config_of, model_of, network_of
from test_fsdp2 import FEW, LAYERS, MANY, PER_TOKEN, TARGETS, Case, ranks
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.checkpoint import checkpoint

from everybyte.basics.dtypes import BF16, FP32
from everybyte.layers.recording.replay import Recompute
from everybyte.layers.recording.setup import Adapter, Kernels, Setup
from everybyte.layers.recording.size import Batch
from everybyte.rules.sharding.fsdp1 import Fsdp1
from everybyte.rules.step.recipe import Recipe, RecomputePlan
from everybyte.rules.step.timeline import StepTimeline


@dataclass(frozen=True)
class Way(Case):
    """One way of training."""

    mode: Recompute = "none"
    outside: bool = True
    """Whole units are run again, not what is in them."""
    gathers_once: bool = False

    def __str__(self) -> str:
        flags = [self.mode, "outside" if self.outside else "inside", "once" if self.gathers_once else "full"]
        return "-".join([super().__str__(), *flags])


WAYS = (
    *(Way(shape, mixed=mixed, gathers_once=once) for shape in (FEW, MANY) for mixed in (True, False) for once in (True, False)),
    *(Way(MANY, mode=mode, outside=outside) for mode in ("reentrant", "non-reentrant") for outside in (True, False)),
)


class Again(torch.nn.Module):  # type: ignore[misc]
    """Runs a unit again in backward."""

    def __init__(self, unit: Any, way: Way) -> None:
        super().__init__()
        self.unit, self.reentrant = unit, way.mode == "reentrant"

    def forward(self, x: torch.Tensor, **more: Any) -> Any:
        """As the unit does."""
        return checkpoint(lambda y: self.unit(y, **more), x, use_reentrant=self.reentrant, preserve_rng_state=False)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.unit, name)


def sharded(way: Way, layers: int) -> Any:
    """A small Llama whose blocks and root are units, and adapters as peft wraps them."""
    model = model_of(config_of("llama", way.shape, layers), torch.float32)
    adapted, policy = model, ModuleWrapPolicy({type(model.model.layers[0])})
    if way.lora:
        adapted = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=list(TARGETS)))
        model.enable_input_require_grads()
        policy = peft.utils.other.fsdp_auto_wrap_policy(model)
    if way.mode != "none" and not way.outside:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": way.mode == "reentrant", "preserve_rng_state": False})
    whole = FullyShardedDataParallel(
        adapted,
        auto_wrap_policy=policy,
        use_orig_params=True,
        device_id=torch.device("cpu"),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16) if way.mixed else None,
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP if way.gathers_once else ShardingStrategy.FULL_SHARD,
    )
    if way.mode != "none" and way.outside:
        for index in range(layers):
            model.model.layers[index] = Again(model.model.layers[index], way)
    return whole


def real(way: Way, layers: int = LAYERS) -> tuple[int, int]:
    """Peaks of forward with the loss, and of backward, above what is there between two steps."""
    model = sharded(way, layers)
    ids = torch.randint(3, VOCAB, way.shape[:2])
    losses: list[torch.Tensor] = []

    def forward() -> None:
        model.zero_grad(set_to_none=True)
        losses[:] = [model(input_ids=ids, labels=ids, use_cache=False).loss]

    def backward() -> None:
        losses[0].backward()

    forward()
    backward()
    up, down = peaks_of_parts(forward, backward, forward, backward)[2:]
    return up, down


def timeline_of(way: Way, layers: int = LAYERS) -> StepTimeline:
    """The same by our account."""
    kind = BF16 if way.mixed else FP32
    adapter = Adapter("lora", 8, TARGETS, kind) if way.lora else None
    setup = Setup(
        weights=kind,
        kernels=Kernels(device="cpu"),
        single=False,
        adapter=adapter,
        trainable=() if way.lora else ("*",),
        input_grads=way.lora or (way.mode != "none" and not way.outside),
    )
    recipe = Recipe(setup, Batch(way.shape.b, way.shape.s, way.shape.s), recompute=RecomputePlan(way.mode), stream=kind)
    reruns = way.mode == "reentrant" and way.outside
    layout = Fsdp1(degree=way.ranks, stored=FP32, prefetches=not reruns, gathers_once=way.gathers_once, holds_inputs=reruns and way.lora)
    return StepTimeline(network_of(config_of("llama", way.shape, layers)), recipe, layout)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_peaks_beside_the_shards(way: Way) -> None:
    """Forward and backward peak where PyTorch's allocator does: gathered units, the one fetched ahead, the joined gradient, the shared ones that stay."""
    timeline = timeline_of(way)
    count = len(timeline.row)
    with ranks(way):
        up, down = real(way)
    # between two steps the shared gradients are there: they go when the next forward begins
    left = sum(line.bytes for line in timeline.layout.gradients(timeline.network, timeline.recipe))
    for mine, theirs in zip((timeline.forward(0, count), timeline.backward(0, count)), (up + left, down + left), strict=True):
        slack = PER_TOKEN * way.shape.b * way.shape.s + theirs // 60
        assert abs(mine.bytes - theirs) <= slack, f"{mine.moment} of {timeline.row[mine.segment].label}: {mine.bytes:,} against {theirs:,}"


@pytest.mark.parametrize("outside", [True, False], ids=["outside", "inside"])
def test_frozen_units_that_run_again_keep_their_inputs(outside: bool) -> None:
    """Where whole units run again reentrantly, one more frozen layer costs its input and that input's gradient to the end of backward; else its input."""
    way = Way(MANY, mixed=False, lora=True, mode="reentrant", outside=outside)
    mine, theirs = [], []
    for layers in (4, 7):
        timeline = timeline_of(way, layers)
        with ranks(way):
            up, down = real(way, layers)
        left = sum(line.bytes for line in timeline.layout.gradients(timeline.network, timeline.recipe))
        mine.append((timeline.forward(0, len(timeline.row)).bytes, timeline.backward(0, len(timeline.row)).bytes))
        theirs.append((up + left, down + left))
    for which in (0, 1):
        assert mine[1][which] - mine[0][which] == pytest.approx(theirs[1][which] - theirs[0][which], rel=0.02)
