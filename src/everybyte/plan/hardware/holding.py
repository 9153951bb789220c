"""The fewest GPUs of one kind that hold a job."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from everybyte.basics.errors import BadInput
from everybyte.catalog.gpus import Gpu
from everybyte.catalog.names import read_table
from everybyte.estimator import headline
from everybyte.job import Job
from everybyte.ledger.answer import Answer
from everybyte.plan.answer import answered
from everybyte.plan.start.layout import laid_out, roughly_needs
from everybyte.plan.start.taken import Taken, with_settings

MOST = 1024
"""No more GPUs are tried where nobody says how many."""
ROUGHLY = 1.1
"""What a job roughly needs may lie so far above what its full answer says."""
AXES = ("tp", "pp", "cp", "dp", "dp_shard", "dp_replicate")


class Holding(NamedTuple):
    """What one kind of GPU can do for a job. `gpus` is None where no number that was tried holds it; `refused` says why none is asked for."""

    gpu: Gpu
    gpus: int | None
    job: Job | None = None
    """The job on so many of them."""
    taken: Taken = MappingProxyType({})
    answer: Answer | None = None
    refused: str = ""

    @property
    def needed(self) -> int | None:
        """Bytes on the device that needs most, as its nvidia-smi would show."""
        return None if self.answer is None else self.answer.size("peak.device")


def vendors_of(job: Job) -> Mapping[str, str]:
    """Vendors whose accelerators the job's framework or engine runs on -> the source."""
    table = {row[0]: (row[1], row[2]) for row in read_table("software_vendors.csv")[1:]}
    word = (job.train.framework if job.train is not None else job.serve.engine if job.serve is not None else None) or "train"
    vendors, source = table.get(word, table["train"])
    return dict.fromkeys(vendors.split("|"), source)


class Least:
    """About the least that each of so many GPUs holds of a job, whatever their kind: a bound that is worked out once for all kinds."""

    def __init__(self, job: Job) -> None:
        self.job = with_settings(job, {"hardware": {"gpus_per_node": job.hardware.gpus_per_node if job.hardware is not None else None}})
        self.known: dict[int, int] = {}

    def __call__(self, gpus: int) -> int:
        """Bytes a GPU; 0 where nothing can be said before a full answer."""
        if gpus not in self.known:
            self.known[gpus] = self._served(gpus) if self.job.serve is not None else self._trained(gpus)
        return self.known[gpus]

    def _served(self, gpus: int) -> int:
        """A share of the weights."""
        try:
            return headline(with_settings(self.job, {"hardware.gpus": 1})).get("weights", 0) // gpus
        except BadInput:
            return 0

    def _trained(self, gpus: int) -> int:
        """What the layout that shards most needs: it is the one that is taken without a GPU."""
        try:
            return roughly_needs(laid_out(with_settings(self.job, {"hardware.gpus": gpus}))[0])
        except BadInput:
            return 0


def fewest(job: Job, gpu: Gpu, most: int = MOST, least: Least | None = None) -> Holding:
    """The smallest number of GPUs of a kind, by doubling, on which the job fits; settings that the job states stay as they are."""
    bound = least or Least(job)
    refused = ""
    count = _of_mesh(job)
    while count <= most:
        if bound(count) <= gpu.capacity * ROUGHLY:
            try:
                candidate, taken = laid_out(with_settings(job, {"hardware.gpu": gpu.name, "hardware.gpus": count}))
                answer = answered(candidate, taken, advise=False)
            except BadInput as fault:
                refused = str(fault)
            else:
                if answer.fits:
                    return Holding(gpu, count, candidate, taken, answer)
        count *= 2
    return Holding(gpu, None, refused=refused)


def _of_mesh(job: Job) -> int:
    """GPUs of one replica by the axes that the job states."""
    section = job.train if job.train is not None else job.serve
    if section is None or section.mesh is None:
        return 1
    return prod(getattr(section.mesh, axis, None) or 1 for axis in AXES)
