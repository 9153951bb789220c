"""A recipe as the ranks of a job run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everybyte.basics.record import Record
from everybyte.job import Job
from everybyte.ledger.build import Line
from everybyte.rules.accounting.account import Bill, Device, Rank
from everybyte.rules.accounting.conventions import Groups
from everybyte.rules.step.layout import WHOLE, Layout
from everybyte.rules.step.recipe import Recipe

if TYPE_CHECKING:
    from everybyte.rules.parallel.mesh import Mesh


class ParallelPlan(Record, frozen=True):
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


def rank_of(bill: Bill, found: ParallelPlan, job: Job, device: Device, experts: int = 0) -> Rank:
    """The one kind of rank, with NCCL's buffers beside its bill."""
    if found.mesh is None or found.gpus == 1:
        return Rank(bill, found.label, found.gpus, host=found.host)
    from everybyte.rules.communication.nccl import beside_allocator  # most jobs have one GPU

    groups: Groups = "torch and a clone" if job.train is not None and (job.train.sharding or "").startswith("zero") else "torch"
    return Rank(bill, found.label, found.gpus, outside=beside_allocator(job, found.mesh, groups, device, experts=experts > 0), host=found.host)
