"""A recipe on the GPUs of a job. One GPU, the usual case, is answered here; the rules of sharding are read when a job has several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everybyte.basics.origin import default_of
from everybyte.basics.record import Record
from everybyte.job import Hardware, Job, Train
from everybyte.layers.network import Network
from everybyte.ledger.build import Line
from everybyte.rules.account import Bill, Device, Rank
from everybyte.rules.choices import Choices
from everybyte.rules.layout import WHOLE, Layout
from everybyte.rules.recipe import Recipe

if TYPE_CHECKING:
    from everybyte.rules.mesh import Mesh


class Spread(Record, frozen=True):
    """A recipe as each rank runs it, and what the rank holds."""

    recipe: Recipe
    layout: Layout = WHOLE
    gpus: int = 1
    mesh: Mesh | None = None
    """None on one GPU."""
    host: tuple[Line, ...] = ()
    """What each rank keeps in host memory."""

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


def rank_of(bill: Bill, found: Spread, job: Job, device: Device, experts: int = 0) -> Rank:
    """The one kind of rank, with NCCL's buffers beside its bill."""
    if found.mesh is None or found.gpus == 1:
        return Rank(bill, found.label, found.gpus, host=found.host)
    from everybyte.rules.nccl import beside_allocator  # as above

    train = job.train
    framework = "deepspeed" if train is not None and (train.sharding or "").startswith("zero") else (train.framework if train is not None else None) or ""
    return Rank(bill, found.label, found.gpus, outside=beside_allocator(job, found.mesh, framework, device, experts=experts > 0), host=found.host)
