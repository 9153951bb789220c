"""What DistributedDataParallel adds to a rank, against PyTorch's own reducer on a process group whose other ranks are not there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from allocations import peak_of, peaks_of_parts
from decoders import VOCAB, config_of, model_of, network_of
from test_fsdp2 import FEW, LAYERS, PER_TOKEN, Case, ranks
from torch.nn.parallel import DistributedDataParallel

from everybyte.basics.dtypes import BF16
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.layers.recording.size import Batch
from everybyte.rules.sharding.ddp import Replicated
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.timeline import StepTimeline


def summed(bucket: Any) -> Any:
    """The sum over ranks that are not there."""
    done: Any = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


@pytest.mark.parametrize("views", [False, True], ids=["copies", "views"])
def test_buckets_and_gradients(views: bool) -> None:
    """Buckets are as large as all gradients and there from the start; backward leaves gradients beside them, or, as views of them, none."""
    network = network_of(config_of("llama", FEW, LAYERS))
    recipe = Recipe(Setup(weights=BF16, kernels=Kernels(device="cpu"), single=False), Batch(FEW.b, FEW.s, FEW.s))
    layout = Replicated(views=views)
    timeline = StepTimeline(network, recipe, layout)
    with ranks(Case(FEW)):
        model = model_of(config_of("llama", FEW, LAYERS), torch.bfloat16)
        made, wrapped = peak_of(lambda: DistributedDataParallel(model, gradient_as_bucket_view=views))
        wrapped.register_comm_hook(None, lambda _, bucket: summed(bucket))
        ids = torch.randint(3, VOCAB, FEW[:2])
        losses: list[torch.Tensor] = []

        def forward() -> None:
            wrapped.zero_grad(set_to_none=True)
            losses[:] = [wrapped(input_ids=ids, labels=ids, use_cache=False).loss]

        def backward() -> None:
            losses[0].backward()

        for _ in range(2):
            forward()
            backward()
        down = peaks_of_parts(forward, backward, forward, backward)[3]
    buckets = sum(line.bytes for line in layout.buffers(network, recipe))
    left = sum(line.bytes for line in layout.gradients(network, recipe))
    assert buckets <= made.left + 512 * 64
    assert buckets >= made.left - 512 * 64
    mine = timeline.backward(0, len(timeline.row)).bytes
    assert abs(mine - (down + left)) <= PER_TOKEN * FEW.b * FEW.s + 0.02 * mine, f"{mine:,} against {down + left:,}"
