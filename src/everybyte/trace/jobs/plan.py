"""From a job to what its program builds and runs. The settings and their defaults are those of the estimate; what a trace cannot follow is refused here."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from everybyte.basics.errors import Unsupported
from everybyte.catalog.models import model_config
from everybyte.estimator import accounted
from everybyte.job import InlineModel, Job
from everybyte.job.pattern import model_of
from everybyte.layers.network import Network
from everybyte.models.source import checkpoint_of
from everybyte.rules.accounting.account import Account
from everybyte.rules.step.recipe import Recipe
from everybyte.rules.step.training import Training
from everybyte.trace.jobs.refuse import refuse_job, refuse_recipe

STAND_IN = "meta-llama/Llama-3.2-1B"
"""Whose network gives a framework's defaults where the job's own model is unknown to the estimate."""
Loop = Literal["plain", "trainer"]
LOOPS: dict[str, Loop] = {"pytorch": "plain", "accelerate": "plain", "transformers": "trainer", "trl": "trainer"}
"""framework -> its loop."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the program of a job builds and runs."""

    job: Job
    config: dict[str, Any]
    """The model's config.json."""
    recipe: Recipe
    """As the estimate of the same job has it."""
    loop: Loop
    network: Network | None
    """None: the estimate does not know the architecture; transformers may."""
    account: Account

    @property
    def accumulation(self) -> int:
        """Micro-batches of a step."""
        return int(self.setting("train.grad_accum", 1))

    @property
    def keeps_outputs(self) -> bool:
        """Whether the loop's variable holds the model's output while backward runs."""
        return self.loop == "plain" and self.recipe.setup.kernels.loss == "hf-outputs-alive"

    def setting(self, key: str, default: Any) -> Any:
        """A setting of the job, as it was given or filled in."""
        return next((setting.value for setting in self.account.choices.settings if setting.key == key), default)


def plan_of(job: Job) -> Plan:
    """What to build and run for a job. Raises BadInput or Unsupported with the key of what a trace cannot follow."""
    refuse_job(job, LOOPS)
    network, account = _accounted(job)
    bill = account.ranks[0].bill
    if not isinstance(bill, Training):
        raise Unsupported("train.extra.rlhf_type", "runs more than one network, which a job's trace does not; trace a script of the algorithm")
    assert job.train is not None
    refuse_recipe(job.train, bill.recipe, mixture=network is not None and network.experts > 0)
    return Plan(
        job=job,
        config=_config(job),
        recipe=bill.recipe,
        loop=LOOPS[job.train.framework or "pytorch"],
        network=network,
        account=account,
    )


def _accounted(job: Job) -> tuple[Network | None, Account]:
    """The network and the account of the estimate; for an architecture that it does not know, the account of a stand-in: its settings alone are read."""
    try:
        network, _, account = accounted(job)
    except Unsupported as error:
        if not error.path.startswith("model"):
            raise
        _, _, account = accounted(replace(job, model=STAND_IN))
        return None, account
    return network, account


def _config(job: Job) -> dict[str, Any]:
    """The config.json of the job's model."""
    model = model_of(job)
    if isinstance(model, InlineModel):
        model = msgspec.to_builtins(model)
    if isinstance(model, dict):
        if not model.get("config"):
            raise Unsupported("model.shape", "a trace builds transformers' own model; give the fields of its config.json: {config: {...}}")
        return dict(model["config"])
    checkpoint = checkpoint_of(model)
    if checkpoint is None:
        return model_config(model)
    if checkpoint.config is None:
        raise Unsupported("model", f"{model} holds no config.json, and a trace builds the model from that; give the folder, or the config.json itself")
    return dict(checkpoint.config)
