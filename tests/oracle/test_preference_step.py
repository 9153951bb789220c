"""A whole step of direct preference optimization on the CPU, as trl 0.24 runs it: the highest moments against PyTorch's allocator."""

from __future__ import annotations

import pytest
import torch
from allocations import Peak, peak_of
from decoders import VOCAB, Shape, config_of, model_of, network_of
from torch.nn import functional as F  # noqa: N812 - its usual name

from everybyte.basics.dtypes import BF16
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.layers.recording.size import Batch
from everybyte.rules.preference.model_roles import ALGORITHMS, ModelRoles
from everybyte.rules.step.recipe import Recipe, RecomputePlan
from everybyte.rules.step.training import Training

SHAPE = Shape(4, 96, 96, 8, 2, 16, 176)
"""Two pairs."""
LAYERS = 3
PER_TOKEN = 128
"""Bytes a token of ids, labels, masks, log-probabilities and row sums that are not modelled."""


def scored(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """trl 0.24 dpo_trainer.py concatenated_forward, without what concerns padding: sums of log-probabilities of each sequence."""
    logits = model(input_ids=ids, use_cache=False).logits
    labels = torch.roll(ids, shifts=-1, dims=1)
    found = []
    for row, of_row in zip(logits, labels, strict=True):
        found.append(F.log_softmax(row, dim=-1).gather(dim=-1, index=of_row.unsqueeze(-1)).squeeze(-1))
    per_token = torch.roll(torch.stack(found), shifts=1, dims=1)
    return per_token[:, 1:].sum(-1)


def real(recompute: bool) -> tuple[Peak, Peak, Peak]:
    """Peaks of the policy's forward, of the reference's, and of backward, beside the weights of both."""
    config = config_of("llama", SHAPE, LAYERS, "sdpa")
    policy, reference = model_of(config, torch.bfloat16), model_of(config, torch.bfloat16).requires_grad_(False)
    if recompute:
        policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False, "preserve_rng_state": False})
    ids = torch.randint(3, VOCAB, SHAPE[:2])

    def refer() -> torch.Tensor:
        with torch.no_grad():
            return scored(reference, ids)

    for _ in range(2):  # the first round warms kernels up
        policy.zero_grad(set_to_none=True)
        first, mine = peak_of(lambda: scored(policy, ids))
        second, theirs = peak_of(refer, first.left)
        ratios = (mine - theirs).chunk(2)
        loss = -F.logsigmoid(0.1 * (ratios[0] - ratios[1])).mean()
        third, _ = peak_of(loss.backward, second.left)
    return first, second, third


def ours(recompute: bool) -> tuple[int, int, int]:
    """The same by our account."""
    network = network_of(config_of("llama", SHAPE, LAYERS, "sdpa"))
    kernels = Kernels(attention="sdpa", device="cpu", loss="logps-rolled", rows=SHAPE.b)
    plan = RecomputePlan("non-reentrant") if recompute else RecomputePlan()
    recipe = Recipe(Setup(weights=BF16, kernels=kernels), Batch(SHAPE.b, SHAPE.s, SHAPE.s), recompute=plan)
    cast = ModelRoles(ALGORITHMS["dpo"], network, network, refers=True)
    training = Training(network, recipe, "8.0", companions=cast.companions(recipe))
    timeline, count = training.timeline, len(training.timeline.row)
    return timeline.forward(0, count).bytes, training.beside_pass(training.companions[0]), timeline.backward(0, count).bytes


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_step_of_dpo(recompute: bool) -> None:
    """Policy forward, reference beside what the policy keeps, and backward peak where PyTorch's allocator does, but for what each token costs."""
    tokens = SHAPE.b * SHAPE.s
    slack = PER_TOKEN * tokens
    # without gradients the model's own variable of the embeddings is all that holds them: not counted
    for mine, theirs, more in zip(ours(recompute), real(recompute), (0, 2 * tokens * SHAPE.h, 0), strict=True):
        assert abs(mine - theirs.highest) <= slack + more, f"{mine:,} against {theirs.highest:,}"
