"""What an answer says of a traced job beside its figures: the job with its settings filled in, the model, what is taken for granted."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, NamedTuple

from everybyte.basics.origin import Setting
from everybyte.estimator import filled_in
from everybyte.job import read_job
from everybyte.ledger.answer import ModelFacts
from everybyte.models.count import active_count, parameter_count
from everybyte.trace.jobs.plan import Plan, plan_of


class Facts(NamedTuple):
    """Parts of an Answer."""

    name: str
    job: dict[str, Any]
    settings: tuple[Setting[Any], ...]
    model: ModelFacts | None
    """None: the estimate does not know the architecture, so that the trace itself has to say."""
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]


def facts_of(job: dict[str, Any]) -> Facts:
    """What a job says."""
    plan = plan_of(read_job(job))
    choices = plan.account.choices
    assumed = (*choices.assumptions, *_installed(plan), *_packed(plan))
    return Facts(plan.job.name or "", filled_in(plan.job, plan.account), tuple(choices.settings), _model(plan), assumed, tuple(choices.warnings))


def _installed(plan: Plan) -> tuple[str, ...]:
    """The releases that ran, where the job names others."""
    asked = plan.job.train.version if plan.job.train else None
    ran = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    return (f"{ran} ran, though the job names {asked}; the loss is that of the named release",) if asked else ()


def _packed(plan: Plan) -> tuple[str, ...]:
    """What of bitsandbytes' layers hangs on values, or on how many rows are multiplied."""
    packed = plan.recipe.setup.packed
    if packed is None:
        return ()
    ran = f"bitsandbytes {version('bitsandbytes')} ran"
    if packed.format == "int8":
        return (f"{ran}; no number that a layer is given is an outlier, whose columns are multiplied in 16 bit",)
    return (f"{ran}; each product of a packed weight unpacks it, as releases before 0.50 do whatever the batch",)


def _model(plan: Plan) -> ModelFacts | None:
    network = plan.network
    if network is None:
        return None
    return ModelFacts(
        name=network.name,
        params=parameter_count(network),
        active_params=active_count(network),
        trainable_params=plan.account.trainable_params,
        layers=network.layers,
    )
