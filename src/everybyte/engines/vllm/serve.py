"""Accounts for a vLLM server: weights, the profiling run, what is left of its share of the device for the cache, and how many tokens and requests that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from everybyte.basics.dtypes import DTYPES
from everybyte.engines.vllm import compressed
from everybyte.engines.vllm.activation import profile
from everybyte.engines.vllm.caches import batches, layers_of
from everybyte.engines.vllm.extra import Keys
from everybyte.engines.vllm.loading import Draft, draft_of, served, text_alone, unfolded
from everybyte.engines.vllm.network import fields_of, stage_sizes
from everybyte.engines.vllm.overhead import graph_line, non_torch
from everybyte.engines.vllm.pages import Demand, Plan, Spec, plan_of
from everybyte.engines.vllm.pool import Stage, cache_figures, explained, padding, pool_of
from everybyte.engines.vllm.settings import Settings, gguf_type, settings_of
from everybyte.engines.vllm.weights import weight_rows
from everybyte.job import Job
from everybyte.job.extra import section
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Setup
from everybyte.ledger.build import Line, plain
from everybyte.rules.accounting.account import Account, Device, Rank
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.serving.server_phases import ServerPhases
from everybyte.rules.serving.settings import known_of
from everybyte.rules.serving.tensor_parallel import refuse_odd, stage_network
from everybyte.rules.serving.weights import setup_of

CACHE = "vllm v1/core/kv_cache_utils.py: blocks that all layer groups share; V0: worker/cache_engine.py"


class Server(ServerPhases, frozen=True):
    """What one rank holds by phase. After the profiling run the engine gives everything but the weights back (mem_utils.py memory_profiling), so that
    cache, graphs and the activations of serving find no holes."""

    def script(self) -> Iterator[tuple[int, int]]:
        """Each row of serving as one block."""
        yield from ((key, line.bytes) for key, line in enumerate(dict(self.phases)["prefill"], 1) if line.bytes)


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of one replica of a server; its tensor-parallel ranks are alike."""
    assert job.serve is not None
    choices, known, fields = ResolvedSettings(), known_of(job), fields_of(job)
    head = (DTYPES["fp16"], None) if gguf_type(job.serve) else None
    setup = served(setup_of(job.serve, network, choices, head), network, choices)
    s = settings_of(job, network, device, setup.weights, choices)
    setup = unfolded(setup, s)
    if network.towers and not s.images and all(tower.name != "encoder" for tower in network.towers):
        network = text_alone(network)
    refuse_odd(network, s.tp)
    sizes = stage_sizes(network.layers, s.pp, section(job.serve.extra, Keys, "serve.extra").VLLM_PP_LAYER_PARTITION)
    draft = draft_of(job.serve, s, choices)
    stages = []
    for index in range(s.pp):
        part = stage_network(network, index, s.pp, sizes) if s.pp > 1 else network
        stage = _stage(job, part, s, setup, fields, device, draft if index == s.pp - 1 else None, index)
        stages.append(stage._replace(pool=pool_of(stage, s, device, known)))
    demand = Demand(s.context, batches(s), s.dcp, network.memory(s.context))
    worst = min(stages, key=lambda stage: stage.plan.blocks(stage.pool or 0))
    figures = worst.figures() | cache_figures(worst, s, demand, known)
    ranks = tuple(_rank(stage, s, index, figures.get("kv.blocks", 0)) for index, stage in enumerate(stages))
    refusals = explained(worst, s, demand, device, choices, figures)
    return Account(ranks, choices, figures=figures, refusals=refusals)


def _stage(job: Job, part: Network, s: Settings, setup: Setup, fields: Mapping[str, Any], device: Device, draft: Draft | None, index: int) -> Stage:
    """One pipeline stage; the draft runs beside the last."""
    first, last = index == 0, index == s.pp - 1
    weights = weight_rows(part, s, setup, fields, last=last)
    specs: tuple[Spec, ...] = ()
    if draft is not None:
        alone = replace(s, lora=None, draft="", draft_tokens=0, offload=0)
        weights += tuple(line._replace(id=f"draft/{line.id}") for line in weight_rows(draft.network, alone, draft.setup, {}, last=True))
        specs = layers_of(draft.network, alone, {}).specs
    peak = profile(part, s, setup, device, fields, first=first, last=last)
    graphs = graph_line(part, s, str(fields.get("model_type")))
    return Stage(weights, peak, non_torch(job, s, device, part.hidden), graphs, _plan(part, s, fields, specs), None)


def _plan(stage: Network, s: Settings, fields: Mapping[str, Any], draft: tuple[Spec, ...]) -> Plan:
    """How the layers of a stage share the pool; those of a draft have blocks as long as the network's."""
    layers = layers_of(stage, s, fields)
    if compressed.is_compressed(layers.specs):
        return compressed.plan_of(layers.specs)
    beside = tuple(replace(spec, block=layers.block) for spec in draft if spec.kind != "state")
    return plan_of((*layers.specs, *beside), padding=padding(s), joined=s.joined or not s.release.has("groups_layers"))


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
