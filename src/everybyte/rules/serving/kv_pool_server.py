"""Servers that load weights, run the largest batch once, and give a share of what is then free to a pool of cache pages."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any, NamedTuple

from everybyte.basics.record import Record
from everybyte.basics.units import GiB, MiB
from everybyte.job import Job
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.ledger.build import Line, plain
from everybyte.rules.accounting.account import Account, Device, Rank
from everybyte.rules.accounting.overhead import context, workspace_line
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.serving.communicators import serving_lines
from everybyte.rules.serving.pages import Priced, Prices, layer_caches, prices
from everybyte.rules.serving.server_phases import Phases, ServerPhases
from everybyte.rules.serving.settings import known_of
from everybyte.rules.serving.tensor_parallel import Cut, stages_of
from everybyte.rules.step.cache import Format
from everybyte.rules.step.persistent_state import weight_lines


class Server(Record, frozen=True):
    """One server, resolved: what it loads, what it computes at once, what share the pool gets."""

    name: str
    setup: Setup
    cut: Cut
    stages: int
    kind: Format
    context: int
    """Tokens of a sequence."""
    running: int
    """Sequences at once, for which recurrent states are kept."""
    page: int
    fraction: float
    """Of what is free when the pool is made."""
    source: str
    """Where that rule is written."""
    work: tuple[Line, ...] = ()
    """What the largest batch takes beside weights."""
    held: tuple[Line, ...] = ()
    """What is there for good before the pool is made, beside weights."""
    of_total: bool = False
    """The fraction is of the whole device: what it leaves is taken from what is free."""
    of_free: float = 1.0
    """Of what is left then, the share that pages take."""
    warm: int = 0
    """Tokens whose pages are there already while free memory is read, and stay beside that share."""
    most: int | None = None
    """Tokens at most."""
    priced: Priced | None = None


class Part(NamedTuple):
    """One rank of a pipeline stage."""

    weights: tuple[Line, ...]
    prices: Prices
    pool: int | None
    """Bytes of the pool; None where the device is not known."""
    tokens: int
    states: int
    """Bytes of recurrent states."""

    @property
    def loaded(self) -> int:
        """Bytes of weights."""
        return sum(line.bytes for line in self.weights)


def account_of(job: Job, network: Network, device: Device, server: Server, choices: ResolvedSettings) -> Account:
    """The account of one replica."""
    known = known_of(job)
    beside = serving_lines(job, device, server.cut.dense, server.stages)
    outside = context(device.compute_capability)[0] + sum(line.bytes for line in beside)
    found = [_part(network_of_stage, device, server, known, outside) for network_of_stage in stages_of(network, server.stages)]
    ranks = tuple(
        Rank(ServerPhases(_phases(part, server, device)), f"pp{i}" if server.stages > 1 else f"tp{server.cut.dense}", server.cut.dense, i, beside)
        for i, part in enumerate(found)
    )
    worst = min(found, key=lambda part: part.tokens)
    if worst.pool is None and "kv.pool" not in known:
        choices.assume("no hardware.gpu: the pool of cache pages, which takes a share of what is free, is not known")
    elif "free_before_load" not in known and device.capacity:
        choices.assume("free before loading: the device less a CUDA context and NCCL's buffers; no other process is on it")
    return Account(ranks, choices, figures=_figures(worst, server), refusals=_refusals(worst, server, job))


def _part(network: Network, device: Device, server: Server, known: dict[str, int], outside: int) -> Part:
    weights = weight_lines(network, server.setup, server.cut)
    found = prices(layer_caches(network, server.cut, server.kind, priced=server.priced))
    states = server.running * found.state
    before = known.get("free_before_load", device.capacity - outside if device.capacity else 0)
    loaded = known.get("weights", sum(line.bytes for line in weights))
    after = known.get("free_after_weights", before - loaded) if before else 0
    pool = known.get("kv.pool")
    each = found.full + found.windowed
    if pool is None and before:
        work = known.get("activation_peak", sum(line.bytes for line in server.work))
        free = after - work - states - sum(line.bytes for line in _held(server, device))
        share = free - device.capacity * (1 - server.fraction) if server.of_total else free * server.fraction
        warm = min(server.warm * float(each), max(share, 0.0))
        pool = max(floor((share - warm) * server.of_free + warm), 0)
    page = each * server.page
    tokens = floor(Fraction(pool) / page) * server.page if pool and page else 0
    if server.most is not None:
        tokens = min(tokens, server.most) if pool else server.most
    return Part(weights, found, None if pool is None else floor(tokens * each), tokens, states)


def _held(server: Server, device: Device) -> tuple[Line, ...]:
    """What takes room before the pool is made. A warm-up through torch has made the workspace of its matrix products."""
    return (*server.held, *((workspace_line(device.compute_capability, 1),) if server.warm else ()))


def _phases(part: Part, server: Server, device: Device) -> Phases:
    workspace = workspace_line(device.compute_capability, 1)
    always = [*part.weights, *server.held, workspace]
    held: list[Line] = []
    if part.tokens:
        each = part.prices.token
        text = plain("tokens·token", tokens=part.tokens, token=each)
        held.append(Line("kv_cache/pool", "kv_cache", part.tokens * each, text, server.source))
    if part.states:
        text = plain("sequences·state", sequences=server.running, state=part.prices.state)
        held.append(Line("state/sequences", "state", part.states, text, server.source))
    return (
        ("load", part.weights),
        ("profile", (*always, *server.work)),
        ("prefill", (*always, *held, *server.work)),
        ("decode", (*always, *held)),
    )


def _figures(part: Part, server: Server) -> dict[str, Any]:
    figures: dict[str, Any] = {"weights": part.loaded, "kv.bytes_per_token": part.prices.token, "kv.block_size": server.page}
    if server.work:
        figures["activation_peak"] = sum(line.bytes for line in server.work)
    if part.states:
        figures["state.bytes"] = part.states
    if part.pool is not None:
        figures |= {"kv.pool": part.pool, "kv.tokens": part.tokens, "kv.blocks": part.tokens // server.page}
        figures["kv.concurrency"] = part.tokens / server.context
    return figures


def _refusals(part: Part, server: Server, job: Job) -> tuple[str, ...]:
    if part.pool is None or not part.prices.token:
        return ()
    if part.tokens < server.page:
        return (f"{server.name}: weights of {part.loaded / GiB:,.2f} GiB and one batch leave no room for a block of KV cache",)
    assert job.serve is not None
    if job.serve.context is not None and server.context > part.tokens:
        return (f"KV cache too small for one sequence of {server.context:,} tokens: use --context <= {part.tokens:,}",)
    return ()


def prompt_line(tokens: int, hidden: int, wide: int, source: str = "") -> Line:
    """The largest instant of a forward pass without fused kernels, 16-bit numbers: gate, up and their product beside three hidden states (residual,
    normalised, result)."""
    size = 2 * tokens * (3 * hidden + 3 * wide)
    text = plain("2·n·(3·h + 3·f)", n=tokens, h=hidden, f=wide)
    why = "gate, up and their product beside three hidden states"
    return Line("activation/prompt", "activation", size, text, f"{source}: {why}" if source else why, "assumed", size // 2, 2 * size + 64 * MiB)
