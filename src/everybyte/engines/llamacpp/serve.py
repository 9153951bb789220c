"""Accounts for llama.cpp, its fork ik_llama.cpp and ollama: caches, weights by device, compute buffers from the replayed planner."""

from __future__ import annotations

from everybyte.basics.origin import inferred
from everybyte.engines.llamacpp import ollama
from everybyte.engines.llamacpp.beside import draft_of, tower_lines
from everybyte.engines.llamacpp.cache import Formats, cells_of, stored
from everybyte.engines.llamacpp.compute import buffers
from everybyte.engines.llamacpp.extra import Keys
from everybyte.engines.llamacpp.layers import blocks_of
from everybyte.engines.llamacpp.parts import Parts
from everybyte.engines.llamacpp.placement import Split, split_of
from everybyte.engines.llamacpp.release import release_of
from everybyte.engines.llamacpp.settings import Settings, settings_of
from everybyte.engines.llamacpp.weights import Held, formats_of, held_weights, own_file
from everybyte.job import Job
from everybyte.job.extra import section
from everybyte.layers.network import Network
from everybyte.ledger.build import Line
from everybyte.rules.accounting.account import Account, Device, Rank
from everybyte.rules.accounting.overhead import context_line
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.quantization.gguf.size import FileKeys
from everybyte.rules.serving.server_phases import ServerPhases

LARGEST_GPU = 192 * 10**9
"""More weights than this on one GPU cannot be: tensors are overridden though the job does not say so."""


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of one server."""
    assert job.serve is not None
    choices = ResolvedSettings()
    by_ollama = job.serve.engine == "ollama"
    if by_ollama:
        job = ollama.as_llamacpp(job, network, device, choices)
    assert job.serve is not None
    keys = section(job.serve.extra, Keys, "serve.extra")
    release = release_of(job.serve, section(job.serve.extra, FileKeys, "serve.extra").fork, choices)
    settings = settings_of(job, network, release, keys, choices)
    formats = formats_of(job.serve, network, release, keys, own_file(job))
    split = split_of(job, len(blocks_of(network)), release, keys, formats)
    beside = (*draft_of(job, network, settings, choices), *tower_lines(job, network, choices))
    if split.caches_on_host:
        choices.warn("the KV cache stays in host memory, and attention is computed there: compute buffers are those of a cache on the GPU")
    if split.mode == "tensor":
        choices.assume("compute buffers are those of whole layers on each GPU (serve.extra.split_mode: layer)")
    parts = _parts(job, network, settings, split, choices)
    free = device.capacity - context_line(device.compute_capability).bytes - sum(line.bytes for line in beside)
    if job.serve.gpu_layers is None and split.gpus and device.capacity and parts.needed > free:
        if by_ollama:
            parts = _fitting(job, network, parts, free, choices)
        elif release.has("fits_itself"):
            choices.warn("all layers on GPUs do not fit; llama-server since December 2025 then moves layers to host memory (--fit): see serve.gpu_layers")
    return Account(_ranks(parts, beside), choices, figures=_figures(parts))


def _fitting(job: Job, network: Network, parts: Parts, free: int, choices: ResolvedSettings) -> Parts:
    """As many layers on GPUs as fit, which ollama finds out for itself (llm/server.go); the output goes first."""
    none, most = 0, parts.split.layers + 1
    best = _parts(job, network, parts.settings, parts.split.keeping(0, parts.settings.release), choices)
    while most - none > 1:
        middle = (none + most) // 2
        found = _parts(job, network, parts.settings, parts.split.keeping(middle, parts.settings.release), choices)
        if found.needed <= free:
            none, best = middle, found
        else:
            most = middle
    choices.note("serve.gpu_layers", none, inferred("as many layers as fit"))
    return best


def _parts(job: Job, network: Network, settings: Settings, split: Split, choices: ResolvedSettings) -> Parts:
    serve, release = job.serve, settings.release
    assert serve is not None
    weights = held_weights(serve, network, split, choices, job.given or {}, own_file(job))
    cells = cells_of(
        network,
        release,
        context=settings.context,
        ubatch=settings.ubatch,
        slots=settings.slots,
        unified=settings.unified,
        whole_windows=settings.whole_windows,
    )
    forms = Formats(settings.key, settings.value, settings.latent, settings.flash)
    caches = tuple(stored(network, index, cells, forms, release) for index in range(split.layers))
    compute = buffers(network, settings, cells, split, _pipelined(section(serve.extra, Keys, "serve.extra"), split, weights, choices))
    if compute is None:
        choices.warn("the graph of this architecture is not written: no compute buffer is counted")
    return Parts(settings, split, cells, caches, weights, compute, network.vocab)


def _pipelined(keys: Keys, split: Split, weights: Held, choices: ResolvedSettings) -> bool:
    """Several batches under way at once: layers split over GPUs, all of them there, and no tensor overridden (llama-context.cpp pipeline_parallel)."""
    if split.gpus < 2 or not split.whole or split.overrides or keys.mode != "layer" or keys.keeps_cache_on_host:
        return False
    if max(weights.devices[:-1]) > LARGEST_GPU:
        choices.assume("more weights than any GPU holds: tensors are overridden to host memory though serve.extra.override-tensor does not say so")
        return False
    return True


def _figures(parts: Parts) -> dict[str, int]:
    """Caches of all devices together; weights and the compute buffer of the busiest GPU, of the host where there is none."""
    windowed = sum(cache.kv for cache in parts.caches if cache.windowed)
    states = parts.settings.slots * sum(cache.state for cache in parts.caches)
    figures = {
        "weights": _busiest(parts.weights.devices),
        "file_bytes": parts.weights.file_bytes,
        "kv.bytes": sum(cache.kv for cache in parts.caches),
        "kv.bytes_per_token": sum(cache.key + cache.value for cache in parts.caches if not cache.windowed),
    }
    if windowed:
        figures["kv.swa_bytes"] = windowed
    if states:
        figures["state.bytes"] = states
    if parts.compute is not None:
        figures["compute_buffer"] = _busiest(parts.compute)
    return figures


def _busiest(devices: tuple[int, ...]) -> int:
    return max(devices[:-1]) if len(devices) > 1 else devices[0]


def _ranks(parts: Parts, beside: tuple[Line, ...]) -> tuple[Rank, ...]:
    """One rank for each GPU that holds something, or the host alone. What the host holds goes along with the first."""
    gpus = parts.split.gpus
    host = parts.lines(gpus)
    held = [(gpu, (*parts.lines(gpu), *(beside if gpu == 0 else ()))) for gpu in range(gpus)]
    used = [(gpu, lines) for gpu, lines in held if lines]
    if not used:
        return (_rank((*host, *beside), "CPU", host=(*host, *beside), on_host=True),)
    return tuple(_rank(lines, f"CUDA{gpu}", stage=gpu, host=host if index == 0 else ()) for index, (gpu, lines) in enumerate(used))


def _rank(lines: tuple[Line, ...], label: str, *, stage: int = 0, host: tuple[Line, ...] = (), on_host: bool = False) -> Rank:
    loaded = tuple(line for line in lines if line.category == "parameter")
    return Rank(ServerPhases((("load", loaded), ("prefill", lines))), label, stage=stage, host=host, on_host=on_host)
