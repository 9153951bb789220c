"""From a job to its answer: the one page that calls everything below it, in order."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from everybyte.allocator.reserved import Reserved, peak_reserved
from everybyte.allocator.settings import AllocatorSettings, read_alloc_conf
from everybyte.basics.collector import collector_paused
from everybyte.basics.errors import BadInput
from everybyte.basics.units import GiB
from everybyte.catalog.gpus import find_gpu
from everybyte.catalog.models import relative_of
from everybyte.catalog.ranges import intervals
from everybyte.engines.idle_keys import tell_idle_keys
from everybyte.engines.registry import account, kind_of, runs_on_host
from everybyte.job import CustomGpu, Job, job_to_dict, read_job
from everybyte.job.pattern import model_of
from everybyte.layers.network import Network
from everybyte.ledger.answer import Answer, HardwareFacts, ModelFacts, RankAnswer
from everybyte.ledger.build import Line, build
from everybyte.ledger.entry import Phase
from everybyte.ledger.ledger import Ledger
from everybyte.models.count import active_count, parameter_count
from everybyte.models.source import network_of
from everybyte.models.vocabulary import with_added_tokens
from everybyte.rules.accounting.account import Account, Bill, Device, Rank
from everybyte.rules.accounting.overhead import context_line

HIP = "gfx"
"""How AMD's architectures are called: there expandable segments are not supported and asking for them has no effect (c10/cuda/CUDAAllocatorConfig.cpp,
PYTORCH_C10_DRIVER_API_SUPPORTED)."""
NODE = 8
"""GPUs of a node where the job does not say."""
NO_DEVICE = Device("", 0, "8.0")
"""Where the job names no GPU: workspaces as on Ampere."""


@collector_paused()
def estimate(job: Job | dict[str, Any] | str, *, tells_idle_keys: bool = False) -> Answer:
    """The answer to a job: figures, ranges, ledgers and the settings behind them.

    `job` is a Job, a mapping in the contract's form, or the path of a file. With `tells_idle_keys` each given key is left out once, and those that change
    nothing are named: as much work as several answers, so that a search leaves it be. Raises BadInput with the key's path, Unsupported for what is not
    modelled.
    """
    job = job if isinstance(job, Job) else read_job(job)
    network, device, found = accounted(job)
    if tells_idle_keys:
        tell_idle_keys(job, found, lambda other: accounted(other)[2])
    allocator = allocator_settings(job, device, expandable=found.expandable)
    replays = [_reserved(rank.bill, max(device.capacity - beside(rank, device), 0), device.capacity, allocator) for rank in found.ranks]
    ranks = tuple(_rank_answer(rank, device, reserved) for rank, reserved in zip(found.ranks, replays, strict=True))
    worst = max(ranks, key=lambda r: r.figures.get("peak.device", 0))
    host = _host(found, job)
    figures: dict[str, float] = {**worst.figures, **found.figures, **({"host.bytes": host["bytes"]} if host else {})}
    given = {k: int(v) for k, v in (job.given or {}).items() if k in figures}
    figures.update(given)
    capacity = device.capacity
    needed = int(figures.get("peak.device.instant", figures.get("peak.device", 0)))
    lacks = (*_lacks_host_memory(job, figures), *_above_the_allowed(ranks, allocator, capacity))
    return Answer(
        name=job.name or "",
        job=filled_in(job, found),
        settings=tuple(found.choices.settings),
        model=ModelFacts(
            name=network.name,
            params=parameter_count(network),
            active_params=active_count(network),
            trainable_params=found.trainable_params,
            layers=network.layers,
        ),
        hardware=HardwareFacts(gpu=device.name, capacity=capacity) if capacity else None,
        fits=False if found.refusals else needed <= capacity and not lacks if capacity else None,
        headroom=capacity - needed if capacity else None,
        figures=figures,
        range=_ranges(job, figures, given),
        ranks=ranks,
        host=host,
        assumptions=(*_counted_as(job, network), *found.choices.assumptions, *_if_uneven(found, worst)),
        warnings=(
            *found.refusals,
            *found.choices.warnings,
            *_beyond_the_positions(network, found),
            *_near_the_limit(ranks, replays),
            *lacks,
            *_of_the_settings(allocator, replays),
            *(f"{key} is the given value, not the computed one" for key in given),
        ),
        refusals=found.refusals,
    )


def _counted_as(job: Job, network: Network) -> tuple[str, ...]:
    """Which model of the catalogue stands for a re-upload, a packed or a tuned copy."""
    if not isinstance(job.model, str) or network.name == job.model or job.model.startswith(("hf:", "/", ".", "~")):
        return ()
    other = relative_of(job.model)
    return (f"{job.model} is counted as {other.name}: {other.reason}",) if other is not None and other.name == network.name else ()


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


def _beyond_the_positions(network: Network, found: Account) -> tuple[str, ...]:
    """A warning, if a server's context is longer than what the model was trained on."""
    context = next((setting.value for setting in found.choices.settings if setting.key == "serve.context"), None)
    if not isinstance(context, int) or not network.max_positions or context <= network.max_positions:
        return ()
    text = f"serve.context {context:,} is longer than the model's {network.max_positions:,} positions"
    return (f"{text}: engines need RoPE scaling or an override for it, and quality drops without",)


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


def _near_the_limit(ranks: tuple[RankAnswer, ...], replays: list[Reserved]) -> list[str]:
    """Where the allocator fills the card, though what lives leaves room."""
    full = [rank.label for rank, reserved in zip(ranks, replays, strict=True) if reserved.retries]
    if not full:
        return []
    return [f"on {', '.join(full)} the allocator reserves the whole GPU and frees cached blocks to continue, which is slow: leave more room"]


def _above_the_allowed(ranks: tuple[RankAnswer, ...], allocator: AllocatorSettings, capacity: int) -> tuple[str, ...]:
    """A warning, if the process may not have as much of the card as it needs."""
    allowed = allocator.allowed_bytes(capacity)
    needed = max(rank.figures["peak.reserved"] for rank in ranks)
    if not 0 < allowed < needed:
        return ()
    part = f"per_process_memory_fraction:{allocator.memory_fraction:g}"
    return (f"{part} allows {allowed / GiB:,.1f} GiB to be reserved, {needed / GiB:,.1f} GiB are needed",)


def _of_the_settings(allocator: AllocatorSettings, replays: list[Reserved]) -> list[str]:
    """Where a setting of the allocator does nothing, or changes what torch calls allocated."""
    found = []
    if allocator.collect_above and allocator.memory_fraction == 1:
        found.append("garbage_collection_threshold has no effect without per_process_memory_fraction below 1")
    blocks = max(reserved.blocks for reserved in replays)
    if blocks:
        found.append(f"peak.allocated is what is asked for; torch.cuda.max_memory_allocated() counts the blocks of these settings, {blocks / GiB:,.1f} GiB")
    return found


def _lacks_host_memory(job: Job, figures: Mapping[str, float]) -> tuple[str, ...]:
    """A warning, if the host memory of a node is stated and too small."""
    stated = job.hardware.host_memory_gib if job.hardware else None
    if stated is None or figures.get("host.bytes", 0) <= stated * GiB:
        return ()
    needed = figures["host.bytes"] / GiB
    return (f"host memory: {needed:,.1f} GiB are needed per node, hardware.host_memory_gib is {stated:g}",)


def allocator_settings(job: Job, device: Device, *, expandable: bool = False) -> AllocatorSettings:
    """What PYTORCH_CUDA_ALLOC_CONF of the job asks of PyTorch's allocator; `expandable` segments where it does not say and the device has them."""
    stated = (job.env.alloc_conf or "") if job.env is not None else ""
    settings = read_alloc_conf(stated, expandable=expandable)
    return msgspec.structs.replace(settings, expandable_segments=False) if device.compute_capability.startswith(HIP) else settings


def _ranges(job: Job, figures: Mapping[str, float], given: dict[str, int]) -> dict[str, tuple[float, float]]:
    """The interval of each figure; a given figure has none."""
    return intervals({name: value for name, value in figures.items() if name not in given}, kind_of(job))


def host_bytes(found: Account, job: Job) -> int:
    """Host memory of a node; 0 where nothing is kept there."""
    return _host(found, job).get("bytes", 0)


def headline(job: Job | dict[str, Any] | str) -> dict[str, int]:
    """The figures that need no rows and no replay of the allocator: peak.allocated, static.allocated and what the engine adds."""
    job = job if isinstance(job, Job) else read_job(job)
    _, _, found = accounted(job)
    totals = [rank.bill.totals() for rank in found.ranks if not rank.is_covered]
    worst = max(totals, key=lambda t: max(t.values()))
    host = _host(found, job)
    return {"peak.allocated": max(worst.values()), **_static(worst), **found.figures, **({"host.bytes": host["bytes"]} if host else {})}


class DevicePeak(NamedTuple):
    """What the worst rank has on its device at its peak, by a replay of the allocator."""

    allocated: int
    device: int
    high: int
    """The upper end of the 90 % interval of `device`."""
    fits: bool
    """Whether `device` has room, and nothing refuses the job."""


def device_peak(job: Job) -> DevicePeak:
    """The figures on the device as `estimate` has them, without rows; ranks that another one covers are not replayed."""
    _, device, found = accounted(job)
    allocator = allocator_settings(job, device, expandable=found.expandable)
    ranks = [(rank, beside(rank, device)) for rank in found.ranks if not rank.is_covered]
    reserved = [_reserved(rank.bill, max(device.capacity - outside, 0), device.capacity, allocator).peak for rank, outside in ranks]
    needed, worst = max(((peak + outside, rank) for (rank, outside), peak in zip(ranks, reserved, strict=True)), key=lambda pair: pair[0])
    figures = {"peak.allocated": max(worst.bill.totals().values()), "peak.device": needed}
    high = int(_ranges(job, figures, {}).get("peak.device", (0, needed))[1])
    allowed = allocator.allowed_bytes(device.capacity)
    is_allowed = not 0 < allowed < max(reserved)
    return DevicePeak(figures["peak.allocated"], needed, max(high, needed), needed <= device.capacity and is_allowed and not found.refusals)


def runs_over(job: Job) -> bool:
    """Whether what lives in a phase, and what lies beside it on the device, are more than there is: a quick no, without rows and without a replay. False
    says nothing yet."""
    _, device, found = accounted(job)
    allowed = allocator_settings(job, device, expandable=found.expandable).allowed_bytes(device.capacity) or device.capacity
    if not device.capacity or job.given:
        return False
    return any(max(rank.bill.totals().values()) > min(allowed, device.capacity - beside(rank, device)) for rank in found.ranks)


def accounted(job: Job) -> tuple[Network, Device, Account]:
    """The model of a job, its device, and what the engine says of its ranks."""
    network = network_of(model_of(job), "model")
    if job.train is not None and job.train.added_tokens:
        network = with_added_tokens(network, job.train.added_tokens, "train.added_tokens")
    device = device_of(job)
    if job.given and "capacity" in job.given:
        device = device._replace(capacity=int(job.given["capacity"]))
    found = account(job, network, device)
    return network, device._replace(capacity=found.capacity or device.capacity), found


def device_of(job: Job) -> Device:
    """The device of a job; one without a capacity where it names none. Raises BadInput for a GPU that nobody knows."""
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


def _beside(rank: Rank, device: Device) -> tuple[Line, ...]:
    """What a process has on the device that is not of the allocator."""
    return rank.outside if rank.on_host else (context_line(device.compute_capability), *rank.outside)


def beside(rank: Rank, device: Device) -> int:
    """Bytes that a process of this rank has on the device outside the allocator."""
    return sum(line.bytes for line in _beside(rank, device))


def _rank_answer(rank: Rank, device: Device, reserved: Reserved) -> RankAnswer:
    ledger = _ledger(rank.bill)
    phases = ledger.phases()
    peak = max(phases, key=lambda p: p.allocated)
    totals = {p.name: p.allocated for p in phases}
    outside = beside(rank, device)
    figures = {"peak.allocated": peak.allocated, "peak.reserved": reserved.peak, "peak.device": reserved.sampled + outside, **_static(totals)}
    if reserved.sampled < reserved.peak:
        figures["peak.device.instant"] = reserved.peak + outside
    return RankAnswer(
        label=rank.label,
        gpus=rank.gpus,
        stage=rank.stage,
        figures=figures,
        peak_phase=peak.name,
        phases=phases,
        ledger=(*ledger.entries, *build(dict.fromkeys(totals, _beside(rank, device))).entries),
    )


@lru_cache(maxsize=256)
def _ledger(bill: Bill) -> Ledger:
    """The rows of a step; the same step has the same rows."""
    return bill.ledger()


@lru_cache(maxsize=256)
def _reserved(bill: Bill, capacity: int, total: int, settings: AllocatorSettings) -> Reserved:
    """Peak of reserved bytes. The replay is the longest part of an answer; the same step on the same device is replayed once."""
    return peak_reserved(bill.script(), settings, capacity, total=total)


def filled_in(job: Job, found: Account) -> dict[str, Any]:
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
