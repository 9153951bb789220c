"""The compute buffers of a context: its largest prompt's graph, planned as ggml plans it."""

from __future__ import annotations

from functools import lru_cache

from everybyte.allocator.ggml_planner import compute_buffers
from everybyte.allocator.ggml_schedule import Devices, Rules
from everybyte.catalog.releases import Release
from everybyte.engines.llamacpp.cache import Cells, widest_values
from everybyte.engines.llamacpp.graph.decoder import NoGraph, prompt_graph
from everybyte.engines.llamacpp.graph.prompt import Prompt
from everybyte.engines.llamacpp.placement import Split
from everybyte.engines.llamacpp.release import is_fork
from everybyte.engines.llamacpp.settings import Settings
from everybyte.layers.network import Network

PIPELINE_COPIES = 4
"""Batches under way at once where layers are split over GPUs (ggml-backend.cpp GGML_SCHED_MAX_COPIES)."""
MOST_SOURCES = 10
"""Inputs of a split, at most (GGML_MAX_SRC), before the end of 2025."""


def rules_of(release: Release) -> Rules:
    """The scheduler and allocator of a build."""
    if is_fork(release):
        weighs = release.has("weighs_experts")
        return Rules(skips_small=False, most_inputs=MOST_SOURCES, more_inplace=False, rows_everywhere=False, weighs_experts=weighs, unused_inputs=False)
    if not release.has("takes_embeddings"):
        return Rules(most_inputs=MOST_SOURCES, more_inplace=False, unused_inputs=False)
    return Rules()


def prompt_of(network: Network, settings: Settings, cells: Cells) -> Prompt:
    """The largest prompt: as many tokens as a ubatch has, rounded up to the sequences."""
    release = settings.release
    sequences = settings.slots if release.has("has_streams") and (release.has("takes_embeddings") or not settings.unified) else 1
    tokens = -(-settings.ubatch // sequences) * sequences
    return Prompt(
        release,
        tokens,
        sequences,
        min(tokens, settings.outputs) if settings.outputs else tokens,
        cells.context,
        cells.window,
        cells.streams,
        settings.slots,
        settings.flash,
        settings.key,
        settings.value,
        settings.latent,
        settings.most_scores,
        widest_values(network),
        settings.joins_experts,
    )


@lru_cache(maxsize=64)
def buffers(network: Network, settings: Settings, cells: Cells, split: Split, pipelined: bool) -> tuple[int, ...] | None:
    """Bytes of each GPU's compute buffer and of the host's; None for a network whose graph is not written."""
    try:
        graph = prompt_graph(network, prompt_of(network, settings, cells), split)
    except NoGraph:
        return None
    return compute_buffers(graph, Devices(split.gpus, PIPELINE_COPIES if pipelined else 1), rules_of(settings.release))
