"""A recipe on the GPUs of a job. One GPU, the usual case, is answered here; the rules of sharding are read when a job has several."""

from __future__ import annotations

from everybyte.basics.origin import default_of
from everybyte.basics.record import Record
from everybyte.job import Hardware, Train
from everybyte.layers.network import Network
from everybyte.rules.choices import Choices
from everybyte.rules.layout import WHOLE, Layout
from everybyte.rules.recipe import Recipe


class Spread(Record, frozen=True):
    """A recipe as each rank runs it, and what the rank holds."""

    recipe: Recipe
    layout: Layout = WHOLE
    gpus: int = 1

    @property
    def label(self) -> str:
        """What the one kind of rank is called."""
        return "gpu 0" if self.gpus == 1 else "every rank"


def spread(train: Train, hardware: Hardware | None, network: Network, recipe: Recipe, framework: str, choices: Choices) -> Spread:
    """How a recipe lies over the GPUs of a job. Raises BadInput for an impossible mesh, Unsupported for axes that the framework does not have here."""
    alone = (hardware.gpus if hardware else None) in (None, 1) and train.mesh is None and train.offload is None
    if alone and train.sharding in (None, "none", "ddp"):
        choices.pick("train.sharding", train.sharding, "none", default_of(framework))
        return Spread(recipe)
    from everybyte.rules.sharding_from_job import over_several  # two hundredths of a second that most jobs do not need

    return over_several(train, hardware, network, recipe, framework, choices)
