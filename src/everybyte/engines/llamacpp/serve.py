"""Accounts for llama.cpp, its fork ik_llama.cpp and ollama: caches, weights by device, compute buffers from the replayed planner."""

from __future__ import annotations

from typing import Any, NamedTuple

from everybyte.engines.llamacpp import ollama
from everybyte.engines.llamacpp.cache import Cells, Formats, Stored, cells_of, stored
from everybyte.engines.llamacpp.compute import buffers
from everybyte.engines.llamacpp.layers import blocks_of
from everybyte.engines.llamacpp.placement import Split, split_of
from everybyte.engines.llamacpp.release import release_of
from everybyte.engines.llamacpp.settings import Settings, settings_of
from everybyte.engines.llamacpp.weights import Held, formats_of, held_weights
from everybyte.job import Job
from everybyte.layers.network import Network
from everybyte.ledger.build import Line, plain
from everybyte.models.source import checkpoint_of
from everybyte.rules.account import Account, Device, Rank
from everybyte.rules.choices import Choices
from everybyte.rules.gguf_size import stored_weights
from everybyte.rules.holding import Holding
from everybyte.rules.serve_settings import Extra, known_of

LARGEST_GPU = 192 * 10**9
"""More weights than this on one GPU cannot be: tensors are overridden though the job does not say so."""
CACHE_SOURCE = "what each layer declares as its cache; llama.cpp src/llama-kv-cache.cpp, llama-memory-recurrent.cpp"
GRAPH_SOURCE = "ggml's scheduler and graph allocator replayed over the largest prompt's graph; llama.cpp ggml/src/ggml-backend.cpp, ggml-alloc.c"
MMPROJ = "towers of images are a file of their own (mmproj), which is loaded where serve.multimodal asks for it"


class Parts(NamedTuple):
    """All that is held, before it is written down by device."""

    settings: Settings
    split: Split
    cells: Cells
    caches: tuple[Stored, ...]
    weights: Held
    compute: tuple[int, ...] | None


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of one server."""
    assert job.serve is not None
    choices = Choices()
    if job.serve.engine == "ollama":
        job = ollama.as_llamacpp(job, network, device, choices)
    assert job.serve is not None
    extra = Extra(job.serve)
    parts = _parts(job, network, extra, choices)
    for name in ("ser", "split_mode", "no_mmap", "mlock", "threads", "jinja"):
        extra.get(name)
    extra.tell(choices, "llama.cpp")
    if parts.compute is None:
        choices.warn("the graph of this architecture is not written: no compute buffer is counted")
    return Account(_ranks(parts), choices, figures=_figures(parts))


def _parts(job: Job, network: Network, extra: Extra, choices: Choices) -> Parts:
    serve = job.serve
    assert serve is not None
    release = release_of(serve, {"fork": extra.get("fork")}, choices)
    settings = settings_of(job, network, release, extra, choices)
    blocks = blocks_of(network)
    own = stored_weights(checkpoint_of(job.model)) if serve.weights is None else None
    split = split_of(job, len(blocks), release, extra, formats_of(serve, network, release, extra, own))
    weights = held_weights(serve, network, split, choices, dict(known_of(job), **(job.given or {})), own)
    cells = cells_of(
        network, release, context=settings.context, ubatch=settings.ubatch, slots=settings.slots, unified=settings.unified,
        whole_windows=settings.whole_windows,
    )  # fmt: skip
    forms = Formats(settings.key, settings.value, settings.latent, settings.flash)
    caches = tuple(stored(network, index, cells, settings.slots, forms, release) for index in range(len(blocks)))
    return Parts(settings, split, cells, caches, weights, buffers(network, settings, cells, split, _pipelined(serve.extra or {}, split, weights, choices)))


def _pipelined(extra: dict[str, Any], split: Split, weights: Held, choices: Choices) -> bool:
    """Several batches under way at once: layers split over GPUs, all of them there, and no tensor overridden (llama-context.cpp pipeline_parallel)."""
    if split.gpus < 2 or not split.whole or split.overrides or extra.get("split-mode", "layer") != "layer":
        return False
    if max(weights.devices[:-1]) > LARGEST_GPU:
        choices.assume("more weights than any GPU holds: tensors are overridden to host memory though serve.extra.override-tensor does not say so")
        return False
    return True


def _figures(parts: Parts) -> dict[str, int]:
    """Sums over all devices, but for the compute buffer and the weights, which are those of the busiest GPU."""
    windowed = sum(c.keys + c.values for c in parts.caches if c.windowed)
    cache, states = sum(c.keys + c.values for c in parts.caches), sum(c.state for c in parts.caches)
    figures = {"weights": _busiest(parts.weights.devices), "file_bytes": parts.weights.file_bytes, "kv.bytes": cache}
    if windowed:
        figures["kv.swa_bytes"] = windowed
    if states:
        figures["state.bytes"] = states
    if parts.compute is not None:
        figures["compute_buffer"] = _busiest(parts.compute)
    return figures


def _busiest(devices: tuple[int, ...]) -> int:
    """The largest GPU; the host where there is none."""
    return max(devices[:-1]) if len(devices) > 1 else devices[0]


def _ranks(parts: Parts) -> tuple[Rank, ...]:
    """One rank a GPU; what the host holds goes along with the first."""
    split = parts.split
    host = tuple(_lines(parts, split.gpus))
    if not split.gpus:
        return (Rank(Holding((("load", ()),)), "CPU", host=host),)
    ranks = []
    for gpu in range(split.gpus):
        lines = tuple(_lines(parts, gpu))
        loaded = tuple(line for line in lines if line.category == "parameter")
        bill = Holding((("load", loaded), ("prefill", lines)))
        ranks.append(Rank(bill, f"CUDA{gpu}", stage=gpu, host=host if gpu == 0 else ()))
    return tuple(ranks)


def _lines(parts: Parts, device: int) -> list[Line]:
    """Rows of one device."""
    lines = [
        Line("weights", "parameter", parts.weights.devices[device], plain("w", w=parts.weights.devices[device]), "llama.cpp src/llama-model.cpp load_tensors")
    ]
    for index, cache in enumerate(parts.caches):
        if parts.split.layer(index) != device:
            continue
        size = cache.keys + cache.values
        if size:
            lines.append(Line(f"kv_cache/{index}", "kv_cache", size, plain("k + v", k=cache.keys, v=cache.values), CACHE_SOURCE))
        if cache.state:
            lines.append(Line(f"state/{index}", "state", cache.state, plain("r", r=cache.state), CACHE_SOURCE))
    if parts.compute is not None and parts.compute[device]:
        size = parts.compute[device]
        lines.append(Line("compute buffer", "workspace", size, plain("c", c=size), GRAPH_SOURCE))
    return lines
