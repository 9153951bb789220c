"""The conductor: a job goes in, an answer comes out."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from everybyte.allocator.reserved import peak_reserved
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.units import GiB
from everybyte.catalog.gpus import find_gpu
from everybyte.catalog.ranges import interval
from everybyte.engines.registry import account, folder_of, runs_on_host, runs_on_several
from everybyte.job import CustomGpu, Job, job_to_dict, read_job
from everybyte.job.pattern import model_of
from everybyte.layers.network import Network
from everybyte.ledger.answer import Answer, HardwareFacts, ModelFacts, RankAnswer
from everybyte.ledger.build import build
from everybyte.ledger.entry import Phase
from everybyte.ledger.ledger import Ledger
from everybyte.models.count import active_count, parameter_count
from everybyte.models.source import network_of
from everybyte.rules.account import Account, Bill, Device, Rank
from everybyte.rules.overhead import context_line

HIP = "gfx"
"""How AMD's architectures are called: there expandable segments are not supported and asking for them has no effect (c10/cuda/CUDAAllocatorConfig.cpp,
PYTORCH_C10_DRIVER_API_SUPPORTED)."""
NODE = 8
"""GPUs of a node where the job does not say."""
NO_DEVICE = Device("", 0, "8.0")
"""Where the job names no GPU: workspaces as on Ampere."""


def estimate(job: Job | dict[str, Any] | str) -> Answer:
    """The answer to a job: figures, ranges, ledgers and the settings behind them.

    `job` is a Job, a mapping in the contract's form, or the path of a file. Raises BadInput with the key's path, Unsupported for what is
    not modelled.
    """
    job = job if isinstance(job, Job) else read_job(job)
    network, device, found = accounted(job)
    expandable = uses_expandable_segments(job, usual=found.expandable) and not device.compute_capability.startswith(HIP)
    ranks = tuple(_rank_answer(rank, device, expandable) for rank in found.ranks)
    worst = max(ranks, key=lambda r: r.figures.get("peak.device", 0))
    host = _host(found, job)
    figures = {**worst.figures, **found.figures, **({"host.bytes": host["bytes"]} if host else {})}
    given = {k: int(v) for k, v in (job.given or {}).items() if k in figures}
    figures.update(given)
    capacity = device.capacity
    needed = figures.get("peak.device", 0)
    lacks = _lacks_host_memory(job, figures)
    return Answer(
        name=job.name or "",
        job=_filled_in(job, found),
        settings=tuple(found.choices.settings),
        model=ModelFacts(
            name=network.name, params=parameter_count(network), active_params=active_count(network), trainable_params=found.trainable_params,
            layers=network.layers,
        ),
        hardware=HardwareFacts(gpu=device.name, capacity=capacity) if capacity else None,
        fits=False if found.refusals else needed <= capacity and not lacks if capacity else None,
        headroom=capacity - needed if capacity else None,
        figures=figures,
        range=_ranges(job, figures, given),
        ranks=ranks,
        host=host,
        assumptions=(*found.choices.assumptions, *_if_uneven(found, worst)),
        warnings=(
            *found.refusals, *found.choices.warnings, *_near_the_limit(ranks, capacity), *lacks,
            *(f"{key} is the given value, not the computed one" for key in given),
        ),
        refusals=found.refusals,
    )  # fmt: skip


def _if_uneven(found: Account, worst: RankAnswer) -> tuple[str, ...]:
    """What peak.allocated would be if the tokens of a mixture of experts were routed as unevenly as can be."""
    heights = [(max(rank.uneven.totals().values()), rank.label) for rank in found.ranks if rank.uneven is not None and not rank.is_covered]
    if not heights:
        return ()
    peak, label = max(heights, key=lambda height: height[0])
    balanced = worst.figures["peak.allocated"]
    where = f" ({label})" if len(found.ranks) > 1 else ""
    text = f"if all tokens of an expert-parallel group choose experts of one rank{where}, peak.allocated is {peak / GiB:,.1f} GiB there"
    return (f"{text}, not {balanced / GiB:,.1f} GiB",)


def _host(found: Account, job: Job) -> dict[str, int]:
    """Host memory of a node: `bytes`, and what of it each row of a rank needs, times the ranks of a node. Empty where nothing is kept there."""
    total: dict[str, int] = {}
    hardware = job.hardware
    per_node = (hardware.gpus_per_node if hardware else None) or NODE
    left = per_node
    for rank in found.ranks:
        here = min(rank.gpus, left)
        left -= here
        for line in rank.host:
            total[line.id] = total.get(line.id, 0) + here * line.bytes
    return {"bytes": sum(total.values()), **total} if total else {}


def _near_the_limit(ranks: tuple[RankAnswer, ...], capacity: int) -> list[str]:
    """Where the allocator fills the card, though what lives would leave room."""
    full = [rank.label for rank in ranks if capacity and rank.figures["peak.device"] == capacity > rank.figures["peak.allocated"]]
    if not full:
        return []
    return [f"on {', '.join(full)} the allocator reserves all that the card has and gives cached blocks back to go on, which is slow: leave more room"]


def _lacks_host_memory(job: Job, figures: dict[str, int]) -> tuple[str, ...]:
    """A warning, if the host memory of a node is stated and too small."""
    stated = job.hardware.host_memory_gib if job.hardware else None
    if stated is None or figures.get("host.bytes", 0) <= stated * GiB:
        return ()
    needed = figures["host.bytes"] / GiB
    return (f"host memory: {needed:,.1f} GiB are needed a node, hardware.host_memory_gib is {stated:g}",)


def uses_expandable_segments(job: Job, *, usual: bool = False) -> bool:
    """Whether PYTORCH_CUDA_ALLOC_CONF of the job asks for expandable segments; `usual` where it does not say. Raises Unsupported for settings that
    change the replay otherwise."""
    stated = (job.env.alloc_conf or "") if job.env is not None else ""
    options = dict(part.strip().partition(":")[::2] for part in stated.split(",") if part.strip())
    unknown = [name for name in options if name not in ("expandable_segments", "backend")]
    if unknown or options.get("backend", "native") != "native":
        raise Unsupported("env.alloc_conf", f"{stated!r} is not answered yet; expandable_segments:True or False is")
    return options.get("expandable_segments", str(usual)).casefold() == "true"


def _ranges(job: Job, figures: dict[str, int], given: dict[str, int]) -> dict[str, tuple[float, float]]:
    """The interval of each figure; a given figure has none."""
    section, engine = folder_of(job)
    several = runs_on_several(job)
    found = {name: interval(value, name, section, engine, several) for name, value in figures.items() if name not in given}
    return {name: ends for name, ends in found.items() if ends is not None}


def headline(job: Job | dict[str, Any] | str) -> dict[str, int]:
    """The figures that need no rows and no replay of the allocator: peak.allocated, static.allocated and what the engine adds."""
    job = job if isinstance(job, Job) else read_job(job)
    _, _, found = accounted(job)
    totals = [rank.bill.totals() for rank in found.ranks if not rank.is_covered]
    worst = max(totals, key=lambda t: max(t.values()))
    host = _host(found, job)
    return {"peak.allocated": max(worst.values()), **_static(worst), **found.figures, **({"host.bytes": host["bytes"]} if host else {})}


def accounted(job: Job) -> tuple[Network, Device, Account]:
    """The model of a job, its device, and what the engine says of its ranks."""
    network = network_of(model_of(job), "model")
    device = _device(job)
    if job.given and "capacity" in job.given:
        device = device._replace(capacity=int(job.given["capacity"]))
    return network, device, account(job, network, device)


def _device(job: Job) -> Device:
    hardware = job.hardware
    if hardware is None or hardware.gpu is None or (hardware.gpus == 0 and runs_on_host(job)):
        return NO_DEVICE
    if hardware.gpus == 0:
        raise BadInput("hardware.gpus", "is 0: this engine runs on a GPU; leave it out or say 1")
    if isinstance(hardware.gpu, CustomGpu):
        return Device(hardware.gpu.name or "GPU", hardware.gpu.memory_bytes, "8.0")
    gpu = find_gpu(hardware.gpu, "hardware.gpu")
    return Device(gpu.name, gpu.capacity, gpu.compute_capability)


def _static(totals: dict[Phase, int]) -> dict[str, int]:
    return {"static.allocated": totals["between_steps"]} if "between_steps" in totals else {}


def _rank_answer(rank: Rank, device: Device, expandable: bool) -> RankAnswer:
    beside = rank.outside if rank.on_host else (context_line(device.compute_capability), *rank.outside)
    outside = sum(line.bytes for line in beside)
    ledger = _ledger(rank.bill)
    phases = ledger.phases()
    peak = max(phases, key=lambda p: p.allocated)
    totals = {p.name: p.allocated for p in phases}
    reserved = max(_reserved(rank.bill, max(device.capacity - outside, 0), expandable), peak.allocated)
    figures = {"peak.allocated": peak.allocated, "peak.reserved": reserved, "peak.device": reserved + outside, **_static(totals)}
    return RankAnswer(
        label=rank.label, gpus=rank.gpus, stage=rank.stage, figures=figures, peak_phase=peak.name, phases=phases,
        ledger=(*ledger.entries, *build(dict.fromkeys(totals, beside)).entries),
    )  # fmt: skip


@lru_cache(maxsize=256)
def _ledger(bill: Bill) -> Ledger:
    """The rows of a step; the same step has the same rows."""
    return bill.ledger()


@lru_cache(maxsize=256)
def _reserved(bill: Bill, capacity: int, expandable: bool) -> int:
    """Peak of reserved bytes. The replay is the longest part of an answer; the same step on the same device is replayed once."""
    return peak_reserved(bill.script(), capacity, expandable=expandable)


def _filled_in(job: Job, found: Account) -> dict[str, Any]:
    """The job with every default filled in."""
    filled = job_to_dict(job)
    for setting in found.choices.settings:
        place = filled
        *path, leaf = setting.key.split(".")
        for key in path:
            below = place.get(key)
            if not isinstance(below, dict):
                below = {}
                place[key] = below
            place = below
        place.setdefault(leaf, setting.value)
    return filled
