"""What the budget leaves for the cache, what the log says of it, and why a start is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from everybyte.basics.units import GiB
from everybyte.engines.vllm.activation import Peak
from everybyte.engines.vllm.pages import Demand, Plan, pages_of_request
from everybyte.engines.vllm.release import is_v1
from everybyte.engines.vllm.settings import Settings
from everybyte.ledger.build import Line
from everybyte.rules.accounting.account import Device
from everybyte.rules.accounting.overhead import context
from everybyte.rules.accounting.resolved_settings import ResolvedSettings

PARTS = ("weights", "activation_peak", "non_torch")
"""Figures that the log states and later rules use where they are given."""


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
            "weights": sum(line.bytes for line in self.weights),
            "activation_peak": self.peak.bytes,
            "non_torch": sum(line.bytes for line in self.outside),
        }
        return found | ({"cuda_graphs": self.graphs.bytes} if self.graphs is not None else {})


def padding(s: Settings) -> float:
    """Up to which ratio of their numbers kinds of layers are padded to the same size (_get_kv_cache_groups_uniform_page_size)."""
    return s.release.share("padding_ratio")


def _budget(s: Settings, device: Device, known: Mapping[str, int]) -> int | None:
    """gpu_memory_utilization of the whole device, whatever others use of it."""
    if "budget" in known:
        return known["budget"]
    return int(device.capacity * s.fraction) if device.capacity else None


def pool_of(stage: Stage, s: Settings, device: Device, known: Mapping[str, int]) -> int | None:
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
    if s.release.has("subtracts_graphs") and stage.graphs is not None:
        taken += known.get("cuda_graphs_estimate", known.get("cuda_graphs", own["cuda_graphs"]))
    return budget - taken


def cache_figures(stage: Stage, s: Settings, demand: Demand, known: Mapping[str, int]) -> dict[str, Any]:
    """Price of a token, pool, blocks, tokens and concurrency, as the log says them."""
    plan = stage.plan
    if not plan.groups:
        return {}
    found: dict[str, Any] = {"kv.bytes_per_token": _token(plan), "kv.block_size": plan.block_size}
    if stage.pool is None:
        return found
    blocks = known.get("kv.blocks", plan.blocks(stage.pool))
    concurrency = blocks / plan.request(demand) if s.release.has("groups_layers") else blocks * plan.block_size / s.context
    tokens = int(concurrency * s.context) if s.release.has("counts_requests") else blocks // len(plan.groups) * plan.block_size * s.dcp
    return found | {"kv.pool": stage.pool, "kv.blocks": blocks, "kv.tokens": tokens, "kv.concurrency": round(concurrency, 4)}


def _token(plan: Plan) -> int:
    """Bytes that one more token of a long sequence takes: what grows with it, over all its layers."""
    size = max((group.layers for group in plan.groups), default=1)
    return (
        sum(size * group.spec.page // group.spec.block for group in plan.groups if group.spec.kind in ("full", "latent"))
        if len(plan.groups) > 1
        else (plan.block_bytes // max(plan.block_size, 1))
    )


def explained(stage: Stage, s: Settings, demand: Demand, device: Device, choices: ResolvedSettings, figures: Mapping[str, Any]) -> tuple[str, ...]:
    """Why the engine refuses to start, if it does; the longest context and the interval of gpu_memory_utilization go to the assumptions."""
    plan, pool = stage.plan, stage.pool
    if pool is None or not plan.groups:
        return ()
    needed = _needed(plan, s, demand)
    if (few := _too_few_states(stage, s)) is not None:
        return (few,)
    if device.capacity:
        choices.assume(_interval(stage, s, device, needed, figures))
    longest = plan.longest(max(pool, 0), demand)
    if pool > 0 and needed <= pool:
        choices.assume(f"one request of {s.context:,} tokens takes {needed / GiB:.2f} of the {pool / GiB:.2f} GiB for the cache")
        return ()
    if pool <= 0:
        return (f"vLLM refuses to start: no memory is left for the KV cache ({pool / GiB:.2f} GiB): raise memory_fraction, or take more GPUs",)
    cause = ""
    if not is_v1(s.release) and s.batched_tokens >= s.context:
        cause = (
            f"; the profiling run takes {figures['activation_peak'] / GiB:.2f} GiB because prompts of the whole context are not cut up (above 32,768 they are)"
        )
    fix = f"use <= {longest:,}" if longest else "no length is short enough"
    short = f"one request takes {needed / GiB:.2f} GiB of cache, {pool / GiB:.2f} GiB are left{cause}"
    return (f"vLLM refuses to start: KV cache too small for max_model_len {s.context:,}: {fix} ({short})",)


def _too_few_states(stage: Stage, s: Settings) -> str | None:
    """A hybrid network whose pool has fewer blocks of state than sequences may run: capturing whole steps is refused."""
    blocks = stage.plan.blocks(max(stage.pool or 0, 0))
    hybrid = any(group.spec.kind == "state" for group in stage.plan.groups)
    if not hybrid or stage.graphs is None or not s.release.has("checks_state_blocks") or not 0 < blocks < s.sequences:
        return None
    return (
        f"vLLM refuses to start: max_num_seqs {s.sequences:,} is more than the {blocks:,} blocks of recurrent state in the pool: use --sequences <= {blocks:,}"
    )


def _needed(plan: Plan, s: Settings, demand: Demand) -> int:
    """Bytes that the check before the start asks for."""
    if s.release.has("checks_groups") or not is_v1(s.release) or len(plan.groups) == 1:
        return plan.needed(demand)
    return sum(pages_of_request(spec, demand) * spec.page for spec in plan.layers)


def _interval(stage: Stage, s: Settings, device: Device, needed: int, figures: Mapping[str, Any]) -> str:
    """Between which values gpu_memory_utilization starts and holds the context."""
    total = device.capacity
    graphs = stage.graphs.bytes if stage.graphs is not None else 0
    taken = sum(figures[name] for name in PARTS) + (graphs if s.release.has("subtracts_graphs") else 0)
    low = (taken + needed) / total
    outside = context(device.compute_capability)[0] + (0 if s.release.has("subtracts_graphs") else graphs)
    high = min((total - outside) / total, 1.0)
    if low > high:
        return f"no gpu_memory_utilization works for {s.context:,} tokens: at least {low:.3f} would be needed, at most {high:.3f} is free"
    return f"gpu_memory_utilization works from {low:.3f} to {high:.3f} for {s.context:,} tokens"
