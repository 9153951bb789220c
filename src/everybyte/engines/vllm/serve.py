"""Accounts for a vLLM server: weights, the profiling run, what is left of its share of the device for the cache, and how many tokens and requests that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec.structs import replace

from everybyte.basics.units import GiB
from everybyte.engines.vllm import compressed
from everybyte.engines.vllm.activation import Peak, profile
from everybyte.engines.vllm.caches import batches, layers_of
from everybyte.engines.vllm.network import fields_of, stage_sizes
from everybyte.engines.vllm.overhead import graph_line, non_torch
from everybyte.engines.vllm.pages import Demand, Plan, pages_of_request, plan_of
from everybyte.engines.vllm.settings import Settings, settings_of
from everybyte.engines.vllm.weights import weight_rows
from everybyte.job import Job
from everybyte.layers.network import Network
from everybyte.layers.setup import Setup
from everybyte.ledger.build import Line, plain
from everybyte.rules.account import Account, Device, Rank
from everybyte.rules.choices import Choices
from everybyte.rules.holding import Holding
from everybyte.rules.overhead import context
from everybyte.rules.serve_settings import known_of
from everybyte.rules.serve_weights import setup_of
from everybyte.rules.tensor_parallel import refuse_odd, stage_network

CACHE = "vllm v1/core/kv_cache_utils.py: blocks that all layer groups share; V0: worker/cache_engine.py"
PARTS = ("weights", "activation_peak", "non_torch")
"""Figures that the log states and later rules use where they are given."""


class Server(Holding, frozen=True):
    """What one rank holds by phase. After the profiling run the engine gives everything but the weights back (mem_utils.py memory_profiling), so that
    cache, graphs and the activations of serving find no holes."""

    def script(self) -> Iterator[tuple[int, int]]:
        """Each row of serving as one block."""
        yield from ((key, line.bytes) for key, line in enumerate(dict(self.phases)["prefill"], 1) if line.bytes)


class Stage(NamedTuple):
    """One pipeline stage: its rows, and what they leave for the cache of one rank."""

    weights: tuple[Line, ...]
    peak: Peak
    outside: tuple[Line, ...]
    graphs: Line | None
    plan: Plan
    pool: int | None
    """Bytes for the cache; None where neither the device nor the budget is known."""

    def figures(self) -> dict[str, int]:
        """The stage's own figures."""
        found = {
            "weights": sum(line.bytes for line in self.weights), "activation_peak": self.peak.bytes, "non_torch": sum(line.bytes for line in self.outside),
        }  # fmt: skip
        return found | ({"cuda_graphs": self.graphs.bytes} if self.graphs is not None else {})


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of one replica of a server; its tensor-parallel ranks are alike."""
    assert job.serve is not None
    choices, known, fields = Choices(), known_of(job), fields_of(job)
    setup = _served(setup_of(job.serve, network, choices), network, choices)
    s = settings_of(job, network, device, setup.weights, choices)
    setup = _unfolded(setup, s)
    if network.towers and not s.images and all(tower.name != "encoder" for tower in network.towers):
        network = _text_alone(network)
    refuse_odd(network, s.tp)
    sizes = stage_sizes(network.layers, s.pp, (job.serve.extra or {}).get("VLLM_PP_LAYER_PARTITION"))
    stages = []
    for index in range(s.pp):
        part = stage_network(network, index, s.pp, sizes) if s.pp > 1 else network
        first, last = index == 0, index == s.pp - 1
        weights = weight_rows(part, s, setup, fields, last=last)
        peak = profile(part, s, setup, device, fields, first=first, last=last)
        outside, graphs = non_torch(job, s, device), graph_line(part, s, str(fields.get("model_type")))
        plan = plan_for(part, s, fields)
        stage = Stage(weights, peak, outside, graphs, plan, None)
        stages.append(stage._replace(pool=_pool(stage, s, device, known)))
    demand = Demand(s.context, batches(s), s.dcp, network.memory(s.context))
    worst = min(stages, key=lambda stage: stage.plan.blocks(stage.pool or 0))
    figures = worst.figures() | _cache_figures(worst, s, demand, known)
    ranks = tuple(_rank(stage, s, index, figures.get("kv.blocks", 0)) for index, stage in enumerate(stages))
    refusals = _explained(worst, s, demand, device, choices, figures)
    return Account(ranks, choices, figures=figures, refusals=refusals)


def _unfolded(setup: Setup, s: Settings) -> Setup:
    """bitsandbytes' 4 bits are loaded with quantised scales, which 0.9 and later turn back into fp32 (bitsandbytes_loader.py, compress_statistics and
    _dequantize_dq)."""
    if setup.packed is None or setup.packed.format not in ("nf4", "fp4"):
        return setup
    return replace(setup, packed=replace(setup.packed, double=s.release.number < (0, 9)))


@lru_cache(maxsize=64)
def _text_alone(network: Network) -> Network:
    """--language-model-only: towers are not loaded."""
    return replace(network, towers=())


def _served(setup: Setup, network: Network, choices: Choices) -> Setup:
    """What stays unquantised where the job does not point at files: published NVFP4 checkpoints of networks with experts pack the experts alone."""
    if setup.packed is None or setup.packed.format != "nvfp4" or network.stored is not None:
        return setup
    if not network.experts:
        choices.assume("NVFP4: every linear layer but the head is packed; checkpoints differ in what they leave in 16 bits, point model at the files to know")
        return setup
    choices.assume("NVFP4: the routed experts alone are packed, as in published checkpoints; point model at the files to know")
    return replace(setup, packed=replace(setup.packed, skip=(*setup.packed.skip, "*self_attn", "*linear_attn", "*shared_expert", "*shared_experts")))


def plan_for(stage: Network, s: Settings, fields: Mapping[str, Any]) -> Plan:
    """How the layers of a stage share the pool."""
    specs = layers_of(stage, s, fields).specs
    if compressed.is_compressed(specs):
        return compressed.plan_of(specs)
    return plan_of(specs, padding=_padding(s), joined=s.joined or not s.release.groups_layers)


def _padding(s: Settings) -> float:
    """Up to which ratio of their numbers kinds of layers are padded to the same size (_get_kv_cache_groups_uniform_page_size)."""
    return 1.5 if s.release.since(0, 18) else 1.25 if s.release.since(0, 12) else 1.0


def _budget(s: Settings, device: Device, known: Mapping[str, int]) -> int | None:
    """gpu_memory_utilization of the whole device, whatever others use of it."""
    if "budget" in known:
        return known["budget"]
    return int(device.capacity * s.fraction) if device.capacity else None


def _pool(stage: Stage, s: Settings, device: Device, known: Mapping[str, int]) -> int | None:
    """What the budget leaves (worker/worker.py, v1/worker/gpu_worker.py determine_available_memory). Below zero, the engine refuses to start."""
    if "kv.pool" in known:
        return known["kv.pool"]
    if s.pool_bytes:
        return s.pool_bytes
    budget = _budget(s, device, known)
    if budget is None:
        return None
    own = stage.figures()
    taken = sum(known.get(name, own[name]) for name in PARTS)
    if s.release.subtracts_graphs and stage.graphs is not None:
        taken += known.get("cuda_graphs_estimate", known.get("cuda_graphs", own["cuda_graphs"]))
    return budget - taken


def _cache_figures(stage: Stage, s: Settings, demand: Demand, known: Mapping[str, int]) -> dict[str, Any]:
    """Price of a token, pool, blocks, tokens and concurrency, as the log says them."""
    plan = stage.plan
    if not plan.groups:
        return {}
    found: dict[str, Any] = {"kv.bytes_per_token": _token(plan), "kv.block_size": plan.block_size}
    if stage.pool is None:
        return found
    blocks = known.get("kv.blocks", plan.blocks(stage.pool))
    concurrency = blocks / plan.request(demand) if s.release.groups_layers else blocks * plan.block_size / s.context
    tokens = int(concurrency * s.context) if s.release.counts_requests else blocks // len(plan.groups) * plan.block_size * s.dcp
    return found | {"kv.pool": stage.pool, "kv.blocks": blocks, "kv.tokens": tokens, "kv.concurrency": round(concurrency, 4)}


def _token(plan: Plan) -> int:
    """Bytes that one more token of a long sequence takes: what grows with it, over all its layers."""
    size = max((group.layers for group in plan.groups), default=1)
    return sum(size * group.spec.page // group.spec.block for group in plan.groups if group.spec.kind in ("full", "latent")) if len(plan.groups) > 1 else (
        plan.block_bytes // max(plan.block_size, 1)
    )  # fmt: skip


def _rank(stage: Stage, s: Settings, index: int, blocks: int) -> Rank:
    """Load, the profiling run, capture, then serving with cache, graphs and as many activations as the profiling run had."""
    weights, peak = stage.weights, stage.peak.lines
    size = blocks * stage.plan.block_bytes
    cache = Line("kv_cache/blocks", "kv_cache", size, plain("blocks·b", blocks=blocks, b=stage.plan.block_bytes), CACHE, "formula")
    graphs = (stage.graphs,) if stage.graphs is not None else ()
    served = (*weights, cache, *graphs)
    phases: list[Any] = [("load", weights), ("profile", (*weights, *peak))]
    if graphs:
        phases.append(("capture", served))
    phases += [("prefill", (*served, *peak)), ("decode", served)]
    label = f"pp{index}" if s.pp > 1 else "gpu 0" if s.tp * s.dp == 1 else "every rank"
    return Rank(Server(tuple(phases)), label, s.tp * s.dp, index, outside=stage.outside)


def _explained(stage: Stage, s: Settings, demand: Demand, device: Device, choices: Choices, figures: Mapping[str, Any]) -> tuple[str, ...]:
    """Why the engine refuses to start, if it does; the longest context and the interval of gpu_memory_utilization go to the assumptions."""
    plan, pool = stage.plan, stage.pool
    if pool is None or not plan.groups:
        return ()
    needed = _needed(plan, s, demand)
    if device.capacity:
        choices.assume(_interval(stage, s, device, needed, figures))
    longest = plan.longest(max(pool, 0), demand)
    if pool > 0 and needed <= pool:
        choices.assume(f"one request of {s.context:,} tokens takes {needed / GiB:.2f} of the {pool / GiB:.2f} GiB for the cache")
        return ()
    if pool <= 0:
        return (f"vLLM refuses to start: no memory is left for cache blocks ({pool / GiB:.2f} GiB); raise memory_fraction or take more GPUs",)
    cause = ""
    if not s.release.v1 and s.batched_tokens >= s.context:
        cause = (
            f"; the profiling run takes {figures['activation_peak'] / GiB:.2f} GiB because prompts of the whole context are not cut up (above 32,768 they are)"
        )
    short = f"one request of {s.context:,} tokens takes {needed / GiB:.2f} GiB of cache, {pool / GiB:.2f} GiB are left{cause}"
    return (f"vLLM refuses to start: {short}; with this pool max_model_len may be {longest:,}",)


def _needed(plan: Plan, s: Settings, demand: Demand) -> int:
    """Bytes that the check before the start asks for."""
    if s.release.checks_groups or not s.release.v1 or len(plan.groups) == 1:
        return plan.needed(demand)
    return sum(pages_of_request(spec, demand) * spec.page for spec in plan.layers)


def _interval(stage: Stage, s: Settings, device: Device, needed: int, figures: Mapping[str, Any]) -> str:
    """Between which values gpu_memory_utilization starts and holds the context."""
    total = device.capacity
    graphs = stage.graphs.bytes if stage.graphs is not None else 0
    taken = sum(figures[name] for name in PARTS) + (graphs if s.release.subtracts_graphs else 0)
    low = (taken + needed) / total
    outside = context(device.compute_capability)[0] + (0 if s.release.subtracts_graphs else graphs)
    high = min((total - outside) / total, 1.0)
    if low > high:
        return f"no gpu_memory_utilization works for {s.context:,} tokens: at least {low:.3f} would be needed, at most {high:.3f} is free"
    return f"gpu_memory_utilization works from {low:.3f} to {high:.3f} for {s.context:,} tokens"
