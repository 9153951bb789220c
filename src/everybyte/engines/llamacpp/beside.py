"""What a server loads beside its model: a draft model, the towers of images (mmproj)."""

from __future__ import annotations

from everybyte.engines.llamacpp.cache import Formats, cells_of, stored
from everybyte.engines.llamacpp.compute import buffers
from everybyte.engines.llamacpp.layers import blocks_of
from everybyte.engines.llamacpp.parts import CACHE_SOURCE, GRAPH_SOURCE, WEIGHT_SOURCE
from everybyte.engines.llamacpp.placement import Formats as WeightFormats
from everybyte.engines.llamacpp.placement import Split
from everybyte.engines.llamacpp.settings import Settings
from everybyte.job import Job
from everybyte.layers.network import Network
from everybyte.ledger.build import Line, plain
from everybyte.models.count import declared, parts
from everybyte.models.source import network_of
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.quantization.gguf.size import gguf_weights

TOWER_BYTES = 2
"""mmproj files are written in fp16 (convert_hf_to_gguf.py --mmproj)."""


def draft_of(job: Job, network: Network, settings: Settings, choices: ResolvedSettings) -> tuple[Line, ...]:
    """Weights, cache and compute buffer of the draft model, on the first GPU: -md, with the context of the model."""
    serve = job.serve
    assert serve is not None
    draft = serve.draft
    if draft is None:
        return ()
    if draft.model is None:
        choices.warn(f"serve.draft {draft.method or ''}: no model of its own is named; layers of multi-token prediction and their cache are not counted")
        return ()
    small = network_of(draft.model, "serve.draft.model")
    found = gguf_weights(serve, small, choices)
    cells = cells_of(
        small,
        settings.release,
        context=settings.context,
        ubatch=settings.ubatch,
        slots=settings.slots,
        unified=settings.unified,
        whole_windows=settings.whole_windows,
    )
    forms = Formats(settings.key, settings.value, settings.latent, settings.flash)
    count = len(blocks_of(small))
    caches = [stored(small, index, cells, forms, settings.release) for index in range(count)]
    size = sum(cache.kv + settings.slots * cache.state for cache in caches)
    gpus = 0 if job.hardware is not None and job.hardware.gpus == 0 else 1
    split = Split(gpus, count, 0 if gpus else count + 1, count + 1 if gpus else 0, (1.0,) * gpus, (), WeightFormats("q4_k"), settings.release)
    compute = (buffers(small, settings, cells, split, False) or (0,))[0]
    choices.assume(f"the draft model {small.name} is quantised and cached as the model is")
    return (
        Line("draft/weights", "parameter", found.nbytes, plain("w", w=found.nbytes), WEIGHT_SOURCE),
        Line("draft/kv_cache", "kv_cache", size, plain("k", k=size), CACHE_SOURCE),
        Line("draft/compute buffer", "workspace", compute, plain("c", c=compute), GRAPH_SOURCE),
    )


def tower_lines(job: Job, network: Network, choices: ResolvedSettings) -> tuple[Line, ...]:
    """The towers of images, where serve.multimodal asks for them."""
    assert job.serve is not None
    if not job.serve.multimodal or not network.towers:
        return ()
    towers = {part.label for part in parts(network) if part.tower and part.tower != "encoder"}
    count = sum(row.copies * row.parameter.numel for row in declared(network) if row.part in towers)
    choices.warn("the compute buffer of the image tower (mmproj) is not counted")
    return (Line("mmproj", "parameter", TOWER_BYTES * count, plain("2·p", p=count), WEIGHT_SOURCE),)
