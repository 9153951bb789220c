"""Accounts for `engine(batch)`, `engine.backward(loss)`, `engine.step()` of a Hugging Face model, with DeepSpeed's own defaults."""

from __future__ import annotations

from everybyte.basics.errors import Unsupported
from everybyte.job import Job, Train
from everybyte.layers.network import Network
from everybyte.rules.accounting.account import Account, Device
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.from_job.parallel_plan import rank_of
from everybyte.rules.from_job.recipe import Defaults, recipe_of
from everybyte.rules.from_job.sharding import over_several
from everybyte.rules.from_job.zero import STAGES
from everybyte.rules.step.training import training


def loss(train: Train, choices: ResolvedSettings) -> str:
    """A training loop keeps the model's output, with its logits, until backward has run."""
    if train.loss is not None and train.loss.kind == "fused-linear":
        return "fused-linear"
    choices.assume("the loop keeps the model's output, with its logits, until backward has run")
    return "hf-outputs-alive"


DEFAULTS = Defaults("DeepSpeed", precision="bf16-master", impl="fused", loss=loss, batch_bytes_per_token=16)
"""deepspeed/runtime/engine.py _configure_basic_optimizer: FusedAdam, or DeepSpeedCPUAdam where states are offloaded."""


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of an engine's step. Ranks are alike."""
    assert job.train is not None
    choices = ResolvedSettings()
    if job.train.sharding not in STAGES:
        raise Unsupported(
            "train.sharding", f"{job.train.sharding or 'none'!r} (ZeRO stage 0) is not supported for DeepSpeed yet; supported: {', '.join(STAGES)}"
        )
    recipe = recipe_of(job.train, network, DEFAULTS, choices)
    found = over_several(job.train, job.hardware, network, recipe, DEFAULTS, choices)
    bill = training(network, found.recipe, device.compute_capability, layout=found.layout)
    return Account((rank_of(bill, found, job, device, network.experts),), choices, bill.trained_params)
