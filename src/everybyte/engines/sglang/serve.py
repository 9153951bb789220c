"""Accounts for a server of SGLang: weights, pools of tokens and states out of the static share of the device, the rest for activations and graphs."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

from everybyte.basics.dtypes import BF16
from everybyte.basics.units import GiB, ceil_div
from everybyte.engines.sglang.beside import absorbed_lines, rotary_lines
from everybyte.engines.sglang.extra import Keys
from everybyte.engines.sglang.fraction import Reserve
from everybyte.engines.sglang.pool import Costs, Pool, costs_of, pool_from_bytes, pool_lines, pool_of, priced, requests_of
from everybyte.engines.sglang.settings import Settings, reserve_of, settings_of
from everybyte.engines.sglang.work import Draft, draft_lines, draft_of, graph_line, work_lines
from everybyte.job import Job, Serve
from everybyte.job.extra import section
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.ledger.build import Line
from everybyte.ledger.entry import Phase
from everybyte.rules.accounting.account import Account, Device, Rank
from everybyte.rules.accounting.overhead import context, workspace_line
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.serving.communicators import serving_lines
from everybyte.rules.serving.lora_slots import slot_lines
from everybyte.rules.serving.pages import Prices, layer_caches, prices
from everybyte.rules.serving.server_phases import Phases, ServerPhases
from everybyte.rules.serving.settings import captured, known_of, kv_format
from everybyte.rules.serving.tensor_parallel import stages_of
from everybyte.rules.serving.weights import setup_of
from everybyte.rules.step.cache import Format
from everybyte.rules.step.persistent_state import weight_lines

NAME = "sglang"
CACHES = ("bf16", "fp16", "fp8", "nvfp4")


class Budget(NamedTuple):
    """How one device is divided, in bytes."""

    before: int
    """Free before weights are loaded."""
    after: int
    """Free once they are."""
    kept: int
    """What the fraction keeps from the pools: before·(1 - fraction)."""

    @property
    def rest(self) -> int:
        """Bytes for pools; below zero where the weights alone are too large."""
        return self.after - self.kept


class Stage(NamedTuple):
    """One rank of a pipeline stage."""

    network: Network
    weights: tuple[Line, ...]
    prices: Prices
    costs: Costs
    draft: Draft
    budget: Budget | None
    pool: Pool | None

    @property
    def loaded(self) -> int:
        """Bytes of weights."""
        return sum(line.bytes for line in self.weights)


class Server(NamedTuple):
    """What all stages of a server have in common."""

    settings: Settings
    setup: Setup
    kind: Format
    reserve: Reserve
    graphs: int
    """Largest captured batch, 0 for none."""
    device: Device
    known: dict[str, int]
    beside: tuple[Line, ...]
    """Communicators."""


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of one replica of a server; its ranks are alike but for pipeline stages."""
    assert job.serve is not None
    serve, choices, known = job.serve, ResolvedSettings(), known_of(job)
    keys = section(serve.extra, Keys, "serve.extra")
    settings = settings_of(job, network, device, keys, choices)
    setup = setup_of(serve, network, choices, reads_gguf=True)
    kind = kv_format(serve, setup.weights if setup.weights.bits <= 16 else BF16, CACHES, NAME, choices)
    reserve = reserve_of(serve, settings, network, device, known, keys, choices)
    sizes = captured(serve)
    graphs = reserve.graphs if sizes is None else max(sizes, default=0)
    server = Server(settings, setup, kind, reserve, graphs, device, known, serving_lines(job, device, settings.tp, settings.pp))
    stages = [_stage(part, server) for part in stages_of(network, settings.pp)]
    worst = min(stages, key=lambda stage: stage.pool.tokens if stage.pool is not None else 0)
    label = f"tp{settings.tp}" if settings.tp > 1 else "gpu 0"
    labels = [f"pp{i} {label}" if settings.pp > 1 else label for i in range(len(stages))]
    ranks = tuple(
        Rank(ServerPhases(_phases(stage, server)), name, settings.tp, i, server.beside) for i, (name, stage) in enumerate(zip(labels, stages, strict=True))
    )
    _assume(settings, worst, known, choices)
    return Account(ranks, choices, figures=_figures(worst, server), refusals=_refusals(worst, server, serve))


def _stage(network: Network, server: Server) -> Stage:
    """Weights, prices and pools of one rank."""
    s, known = server.settings, server.known
    weights = (
        *weight_lines(network, server.setup, s.cut),
        *absorbed_lines(network, s.cut),
        *rotary_lines(network),
        *slot_lines(network, server.setup, s.cut, s.lora),
    )
    found = prices(layer_caches(network, s.cut, server.kind, s.state_bytes, priced))
    two = found.windowed > 0 and s.release.has(f"two_pools_{network.family}")
    draft = draft_of(network, server.setup, s)
    counted = draft if s.release.has("counts_drafts") else Draft()
    costs = costs_of(found, two_pools=two, share=s.share, page=s.page, draft=Fraction(counted.token))
    budget = _budget(known.get("weights", sum(line.bytes for line in weights)) + counted.weights, server)
    pool = None
    if "kv.pool" in known:
        pool = pool_from_bytes(known["kv.pool"], costs, s.slots, s.most)
    elif budget is not None:
        pool = pool_of(budget.rest, costs, s.slots, s.most)
    elif s.most is not None:
        pool = pool_of(ceil_div(s.most * costs.cell.numerator, costs.cell.denominator) if costs.cell else 0, costs, s.slots, s.most)
    return Stage(network, weights, found, costs, draft, budget, pool)


def _budget(loaded: int, server: Server) -> Budget | None:
    """None where the device is not known. Communicators are made before weights are loaded."""
    device, known = server.device, server.known
    outside = context(device.compute_capability)[0] + sum(line.bytes for line in server.beside)
    before = known.get("free_before_load") or (device.capacity - outside if device.capacity else 0)
    if not before:
        return None
    return Budget(before, known.get("free_after_weights", before - loaded), round(before * (1 - server.reserve.fraction)))


def _phases(stage: Stage, server: Server) -> Phases:
    """Rows of loading, capture and serving."""
    s, reserve = server.settings, server.reserve
    always = (*stage.weights, workspace_line(server.device.compute_capability, 1))
    found: list[tuple[Phase, tuple[Line, ...]]] = [("load", stage.weights)]
    work = work_lines(stage.network, s.cut, reserve.chunk // s.groups, _requests(stage, s, server.graphs))
    if stage.pool is None:
        return (*found, ("prefill", (*always, *work)))
    held = [*always, *pool_lines(stage.pool, stage.costs, s.running, s.context), *draft_lines(stage.draft, stage.pool.tokens)]
    graphs = graph_line(stage.network, s.cut, server.graphs, speculative=bool(s.speculative))
    if graphs is not None:
        held.append(graphs)
        found.append(("capture", tuple(held)))
    return (*found, ("prefill", (*held, *work)), ("decode", tuple(held)))


def _requests(stage: Stage, s: Settings, graphs: int) -> int:
    """Sequences whose logits are worked out at once: those that run, as far as the pool holds them."""
    return min(requests_of(stage.pool.tokens, s.running, s.context) if stage.pool is not None else s.running or 1, max(graphs, 256))


def _figures(stage: Stage, server: Server) -> dict[str, Any]:
    """Figures by the contract's names."""
    s = server.settings
    figures: dict[str, Any] = {"weights": stage.loaded, "kv.bytes_per_token": stage.prices.token, "kv.block_size": s.page}
    work = work_lines(stage.network, s.cut, server.reserve.chunk // s.groups, _requests(stage, s, server.graphs))
    figures["activation_peak"] = sum(line.bytes for line in work)
    graphs = graph_line(stage.network, s.cut, server.graphs, speculative=bool(s.speculative))
    if graphs is not None:
        figures["cuda_graphs"] = graphs.bytes
    pool = stage.pool
    if pool is None:
        return figures
    figures |= {"kv.pool": pool.bytes, "kv.tokens": pool.tokens, "kv.blocks": pool.tokens // pool.page, "kv.concurrency": pool.tokens / s.context}
    if pool.windowed_bytes:
        figures["kv.swa_bytes"] = pool.windowed_bytes
    if pool.state_bytes:
        figures["state.bytes"] = pool.state_bytes
    return figures


def _refusals(stage: Stage, server: Server, serve: Serve) -> tuple[str, ...]:
    """What SGLang says at the start, or what it could never serve."""
    pool, budget, s = stage.pool, stage.budget, server.settings
    if pool is None:
        return ()
    if pool.tokens <= 0:
        if budget is None:
            return ("no token fits into the pool",)
        needed = 1 - budget.after / budget.before
        if needed >= 1:
            return (f"weights of {stage.loaded / GiB:,.2f} GiB are more than the device has free: no mem_fraction_static works",)
        return (f"SGLang refuses: not enough memory for one token; mem_fraction_static {server.reserve.fraction:.3f} must be above {needed:.3f}",)
    if serve.context is not None and s.context > pool.tokens:
        return (f"KV cache too small for one sequence of {s.context:,} tokens: use --context <= {pool.tokens:,}, longer requests are refused",)
    return ()


def _assume(s: Settings, stage: Stage, known: dict[str, int], choices: ResolvedSettings) -> None:
    if stage.budget is not None and "free_before_load" not in known:
        choices.assume("what is free before loading: the device less a CUDA context and NCCL's buffers; no other process is on it")
    if s.speculative and s.speculative != "ngram":
        place = "are part of the static share" if s.release.has("counts_drafts") else "come out of what the static fraction keeps"
        choices.assume(f"weights and cache of the draft model {place}: extra.draft_layers layers (1) like the model's last")
    if any(tower.name != "encoder" for tower in stage.network.towers):
        choices.assume("what the encoder of images computes comes out of what the static fraction keeps; it is not in the rows")
    if s.pp > 1:
        choices.assume("layers are dealt out evenly over pipeline stages")
