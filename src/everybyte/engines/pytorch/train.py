"""Accounts for `out = model(ids, labels=ids); out.loss.backward(); optimizer.step(); optimizer.zero_grad()`."""

from __future__ import annotations

from everybyte.engines.account import Account, Rank
from everybyte.engines.registry import Device
from everybyte.job import Job, Train
from everybyte.layers.network import Network
from everybyte.rules.choices import Choices
from everybyte.rules.from_job import Defaults, recipe_of
from everybyte.rules.static import trained
from everybyte.rules.training import training


def loss(train: Train, choices: Choices) -> str:
    """The loop holds the model's output while backward runs, logits included."""
    kind = train.loss.kind if train.loss else None
    if kind == "fused-linear":
        return "fused-linear"
    if "cut-cross-entropy" in (train.kernels or ()):
        return "cut"
    choices.assume("the loop keeps the model's output, with its logits, until backward has run")
    return "hf-outputs-alive"


DEFAULTS = Defaults("PyTorch", precision="fp32", loss=loss, batch_bytes_per_token=16)


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of a plain loop on one GPU."""
    assert job.train is not None
    choices = Choices()
    recipe = recipe_of(job.train, network, DEFAULTS, choices)
    bill = training(network, recipe, device.compute_capability)
    return Account((Rank(bill),), choices, trained(network, recipe.setup, recipe.gradient, recipe.stepped).numel)
