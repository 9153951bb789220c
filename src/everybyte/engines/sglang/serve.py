"""Accounts for a server of SGLang: weights, pools of tokens and states out of the static share of the device, the rest for activations and graphs."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from everybyte.basics.dtypes import BF16
from everybyte.basics.units import GiB, MiB, ceil_div
from everybyte.engines.sglang.fraction import SOURCE as FRACTION
from everybyte.engines.sglang.fraction import Reserve
from everybyte.engines.sglang.pool import SOURCE, STATES, TWO_POOLS, Costs, Pool, costs_of, pool_from_bytes, pool_of, priced
from everybyte.engines.sglang.settings import Settings, reserve_of, settings_of
from everybyte.job import Job, Serve
from everybyte.layers.network import Network, declare
from everybyte.layers.setup import Setup
from everybyte.ledger.build import Line, plain
from everybyte.ledger.entry import Phase
from everybyte.models.count import DECLARE, parts
from everybyte.rules.account import Account, Device, Rank
from everybyte.rules.cache import Format
from everybyte.rules.choices import Choices
from everybyte.rules.holding import Holding
from everybyte.rules.overhead import context, workspace_line
from everybyte.rules.paged import Prices, layer_caches, prices
from everybyte.rules.serve_communicators import serving_lines
from everybyte.rules.serve_settings import Extra, captured, known_of, kv_format
from everybyte.rules.serve_weights import setup_of
from everybyte.rules.static import weight_lines
from everybyte.rules.tensor_parallel import Cut, stages_of

NAME = "sglang"
CACHES = ("bf16", "fp16", "fp8", "nvfp4")
ACTIVATIONS = f"{FRACTION}: 1.5 MiB a token of a chunk is what SGLang itself reckons with; nothing is allocated ahead"
GRAPHS = f"{FRACTION}: 2 MiB a sequence of the largest captured batch is what SGLang itself reckons with"
ABSORBED = "sglang models/deepseek_v2.py post_load_weights: w_kc and w_vc, 16-bit copies of kv_b_proj beside it"


class Stage(NamedTuple):
    """One rank of a pipeline stage."""

    weights: tuple[Line, ...]
    prices: Prices
    costs: Costs
    budget: Budget | None
    pool: Pool | None

    @property
    def loaded(self) -> int:
        """Bytes of weights."""
        return sum(line.bytes for line in self.weights)


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


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of one replica of a server; its ranks are alike but for pipeline stages."""
    assert job.serve is not None
    serve, choices, known = job.serve, Choices(), known_of(job)
    extra = Extra(serve)
    settings = settings_of(job, network, extra, choices)
    setup = setup_of(serve, network, choices)
    kind = kv_format(serve, setup.weights if setup.weights.bits <= 16 else BF16, CACHES, NAME, choices)
    reserve = reserve_of(serve, settings, network, device, known, extra, choices)
    beside = serving_lines(job, device, settings.tp, settings.pp)
    stages = [_stage(part, setup, settings, kind, device, reserve, known, beside) for part in stages_of(network, settings.pp)]
    worst = min(stages, key=lambda stage: stage.pool.tokens if stage.pool is not None else 0)
    sizes = captured(serve)
    graphs = reserve.graphs if sizes is None else max(sizes, default=0)
    ranks = tuple(
        Rank(Holding(_phases(stage, reserve, graphs, settings, device)), f"pp{i}" if settings.pp > 1 else f"tp{settings.tp}", settings.tp, i, beside)
        for i, stage in enumerate(stages)
    )  # fmt: skip
    _assume(settings, worst, known, choices)
    extra.tell(choices, NAME)
    return Account(ranks, choices, figures=_figures(worst, settings, reserve, graphs, known), refusals=_refusals(worst, settings, reserve, serve))


def _stage(
    network: Network, setup: Setup, s: Settings, kind: Format, device: Device, reserve: Reserve, known: dict[str, int], beside: tuple[Line, ...]
) -> Stage:
    """Weights, prices and pools of one rank."""
    weights = (*weight_lines(network, setup, s.cut), *_absorbed(network, s.cut))
    found = prices(layer_caches(network, s.cut, kind, priced=priced))
    since = TWO_POOLS.get(network.family)
    two = since is not None and s.version >= since and found.windowed > 0
    costs = costs_of(found, two_pools=two, share=s.share, page=s.page)
    loaded = known.get("weights", sum(line.bytes for line in weights))
    budget = _budget(loaded, device, reserve, known, sum(line.bytes for line in beside))
    pool = None
    if "kv.pool" in known:
        pool = pool_from_bytes(known["kv.pool"], costs, s.slots, s.most)
    elif budget is not None:
        pool = pool_of(budget.rest, costs, s.slots, s.most)
    elif s.most is not None:
        pool = pool_of(ceil_div(s.most * costs.cell.numerator, costs.cell.denominator) if costs.cell else 0, costs, s.slots, s.most)
    return Stage(weights, found, costs, budget, pool)


def _budget(loaded: int, device: Device, reserve: Reserve, known: dict[str, int], beside: int) -> Budget | None:
    """None where the device is not known. `beside`: bytes of communicators, made before weights are loaded."""
    before = known.get("free_before_load") or (device.capacity - context(device.compute_capability)[0] - beside if device.capacity else 0)
    if not before:
        return None
    return Budget(before, known.get("free_after_weights", before - loaded), round(before * (1 - reserve.fraction)))


@lru_cache(maxsize=256)
def _absorbed(network: Network, cut: Cut) -> tuple[Line, ...]:
    """What MLA keeps beside its projections for attention over latents."""
    lines = []
    for part in parts(network):
        for parameter in declare(part.layer, DECLARE, part.dims).parameters:
            if parameter.name.endswith("kv_b_proj.weight"):
                rows, width = (dim.size for dim in parameter.dims)
                each = ceil_div(rows, cut.heads)
                text = plain("L·2·rows·r_kv", L=part.copies, rows=each, r_kv=width)
                lines.append(Line(f"weights/{part.label}/absorbed", "parameter", 2 * part.copies * each * width, text, ABSORBED))
    return tuple(lines)


def _phases(stage: Stage, reserve: Reserve, graphs: int, s: Settings, device: Device) -> tuple[tuple[Phase, tuple[Line, ...]], ...]:
    """Rows of loading, capture and serving."""
    always = (*stage.weights, workspace_line(device.compute_capability, 1))
    found: list[tuple[Phase, tuple[Line, ...]]] = [("load", stage.weights)]
    if stage.pool is None:
        return (*found, ("prefill", (*always, _activations(reserve))))
    pools = tuple(_pool_lines(stage, s))
    captured_lines = (_graphs(graphs),) if graphs else ()
    return (*found, ("capture", (*always, *pools, *captured_lines)), ("prefill", (*always, *pools, *captured_lines, _activations(reserve))))


def _pool_lines(stage: Stage, s: Settings) -> list[Line]:
    pool, costs = stage.pool, stage.costs
    assert pool is not None
    lines = []
    if pool.bytes > pool.windowed_bytes:
        each = round(costs.full)
        lines.append(
            Line(
                "kv_cache/tokens",
                "kv_cache",
                (pool.tokens + pool.page) * each,
                plain("(tokens + page)·token", tokens=pool.tokens, page=pool.page, token=each),
                SOURCE,
            )
        )
    if pool.windowed_bytes:
        each = round(costs.windowed)
        text = plain("(swa_tokens + page)·token", swa_tokens=pool.windowed, page=pool.page, token=each)
        lines.append(Line("kv_cache/windows", "kv_cache", (pool.windowed + pool.page) * each, text, SOURCE))
    if pool.state_bytes:
        lines.append(Line("state/slots", "state", pool.state_bytes, plain("(slots + 1)·state", slots=pool.slots, state=costs.state), STATES))
    return lines


def _activations(reserve: Reserve) -> Line:
    size = max(reserve.chunk, 2048) * 3 * MiB // 2
    text = plain("1572864·chunk", chunk=max(reserve.chunk, 2048))
    return Line("activation/chunk", "activation", size, text, ACTIVATIONS, "assumed", size // 8, 2 * size)


def _graphs(largest: int) -> Line:
    size = 2 * MiB * largest
    return Line("graphs/decode", "graph_pool", size, plain("2097152·batch", batch=largest), GRAPHS, "assumed", size // 4, 4 * size)


def _figures(stage: Stage, s: Settings, reserve: Reserve, graphs: int, known: dict[str, int]) -> dict[str, int]:
    """Figures by the contract's names."""
    figures = {"weights": stage.loaded, "kv.bytes_per_token": stage.prices.token, "kv.block_size": s.page}
    figures["activation_peak"] = _activations(reserve).bytes
    if graphs:
        figures["cuda_graphs"] = _graphs(graphs).bytes
    pool = stage.pool
    if pool is None:
        return figures
    figures |= {"kv.pool": pool.bytes, "kv.tokens": pool.tokens, "kv.blocks": pool.tokens // pool.page}
    figures["kv.concurrency"] = _concurrency(pool.tokens, s.context)
    if pool.windowed_bytes:
        figures["kv.swa_bytes"] = pool.windowed_bytes
    if pool.state_bytes:
        figures["state.bytes"] = pool.state_bytes
    return figures


def _concurrency(tokens: int, length: int) -> int:
    """Sequences of the full context that are in the pool at once."""
    return tokens // length


def _refusals(stage: Stage, s: Settings, reserve: Reserve, serve: Serve) -> tuple[str, ...]:
    """What SGLang says at the start, or what it could never serve."""
    pool, budget = stage.pool, stage.budget
    if pool is None:
        return ()
    if pool.tokens <= 0:
        if budget is None:
            return ("no token fits into the pool",)
        needed = 1 - budget.after / budget.before
        if needed >= 1:
            return (f"weights of {stage.loaded / GiB:,.2f} GiB are more than the device has free: no mem_fraction_static works",)
        return (f"SGLang refuses: not enough memory for one token; mem_fraction_static {reserve.fraction:.3f} must be above {needed:.3f}",)
    if serve.context is not None and s.context > pool.tokens:
        return (f"the pool holds {pool.tokens:,} tokens, fewer than one sequence of serve.context {s.context:,}: longer requests are refused",)
    return ()


def _assume(s: Settings, stage: Stage, known: dict[str, int], choices: Choices) -> None:
    if stage.budget is not None and "free_before_load" not in known:
        choices.assume("what is free before loading: the device less a CUDA context and NCCL's buffers; no other process is on it")
    if s.speculative and s.speculative != "ngram":
        choices.assume(f"{s.speculative}: weights and cache of the draft come out of what the fraction keeps; they are not in the rows")
    if s.pp > 1:
        choices.assume("layers are dealt out evenly over pipeline stages")
