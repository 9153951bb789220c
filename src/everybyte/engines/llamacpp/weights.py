"""Weights by device, and the formats that the graph sees."""

from __future__ import annotations

from typing import Any, NamedTuple

from everybyte.basics.dtypes import DTYPES
from everybyte.basics.errors import Unsupported
from everybyte.catalog.releases import Release
from everybyte.engines.llamacpp.extra import Keys
from everybyte.engines.llamacpp.placement import Formats, Split
from everybyte.engines.llamacpp.release import is_fork
from everybyte.job import Job, Serve
from everybyte.layers.network import Network
from everybyte.models.source import checkpoint_of
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.quantization.gguf.size import GgufWeights, gguf_weights, stored_weights
from everybyte.rules.quantization.gguf.tensors import Converter, gguf_tensors, typed_tensors
from everybyte.rules.quantization.gguf.types import MIXTURES, packed_type, quantization

UNKNOWN = "q4_k"
"""Format of matrices whose mixture no public rule says, for the graph alone."""


BY_BITS = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_0")


def _nearest(serve: Serve) -> str:
    """The format of most matrices of a mixture whose rules are nobody's but its maker's: that with the nearest number of bits."""
    bits = serve.weights.bits if serve.weights is not None else None
    return min(BY_BITS, key=lambda name: abs(DTYPES[name].bits - bits)) if bits else UNKNOWN


class Held(NamedTuple):
    """Bytes of weights on each GPU and, last, on the host."""

    devices: tuple[int, ...]
    file_bytes: int
    whole: int


def word_of(serve: Serve) -> str:
    """The format that a job names."""
    return (serve.weights.format if serve.weights is not None else None) or ""


def own_file(job: Job) -> GgufWeights | None:
    """The tensors of the model's own GGUF file, where the model is one and the job names no other format."""
    return None if job.serve is not None and word_of(job.serve) else stored_weights(checkpoint_of(job.model))


def formats_of(serve: Serve, network: Network, release: Release, keys: Keys, own: GgufWeights | None = None) -> Formats:
    """Formats by tensor where quantize's rules are known, else one for all matrices. `own`: the tensors of the model's own file."""
    if own is not None:
        by_name = tuple((t.tensor.name, t.kind) for t in own.tensors)
        return Formats(max((t.nbytes, t.kind) for t in own.tensors)[1], by_name, repacked=keys.run_time_repack)
    word = word_of(serve).casefold()
    interleaved = word.rpartition("_r")[2].isdigit() and "_r" in word
    repacked = keys.run_time_repack
    plain = word.rpartition("_r")[0] if interleaved else word
    plain = f"{plain.removesuffix('_xl').removesuffix('_kx')}_m" if plain.endswith("_k_xl") else plain
    base = MIXTURES.get(plain) or packed_type(plain) or {"fp16": "f16", "fp32": "f32", "mxfp4": "mxfp4", "": "f16"}.get(plain) or _nearest(serve)
    names: tuple[tuple[str, str], ...] = ()
    if plain in MIXTURES:
        converter = Converter(both_latents=True) if is_fork(release) else Converter(release)
        names = tuple((t.tensor.name, t.kind) for t in typed_tensors(network, quantization(plain), converter))
    return Formats(base, names, interleaved, repacked)


def held_weights(serve: Serve, network: Network, split: Split, choices: ResolvedSettings, given: dict[str, Any], own: GgufWeights | None = None) -> Held:
    """Where the weights are. A file's tensors count in full; with a mean number of bits each tensor has its share. Where matrices are cut over the GPUs, so
    are the bytes."""
    found = own or _weights(serve, network, choices, given)
    tied = network.tied if own is None else all(t.tensor.name != "output.weight" for t in own.tensors)
    names = [(t.tensor.name, t.tensor.layer, t.nbytes) for t in found.tensors]
    if not names:
        tensors = gguf_tensors(network)
        total = sum(t.elements for t in tensors) or 1
        names = [(t.name, t.layer, found.nbytes * t.elements // total) for t in tensors]
    held = [0] * (split.gpus + 1)
    for name, layer, size in names:
        at = layer if layer >= 0 else split.layers if name.startswith("output") else -1
        held[split.named(name, at) if at >= 0 else split.cpu_of(name)] += size
        if tied and name == "token_embd.weight" and split.layer(split.layers) != split.gpus:
            held[split.layer(split.layers)] += size  # the output on a GPU is a copy of its own
    if split.mode in ("row", "tensor") and split.gpus:
        on_gpus = sum(held[:-1])
        held = [*(round(on_gpus * split.share(gpu)) for gpu in range(split.gpus)), held[-1]]
    return Held(tuple(held), found.file_bytes, sum(held))


def _weights(serve: Serve, network: Network, choices: ResolvedSettings, given: dict[str, Any]) -> GgufWeights:
    """By quantize's rules; a mixture of somebody's own counts by its base format."""
    try:
        return gguf_weights(serve, network, choices, given)
    except Unsupported:
        word = word_of(serve).casefold()
        base = f"{word.removesuffix('_xl').removesuffix('_kx')}_m" if word.endswith("_k_xl") else "q4_k_m"
        choices.warn(f"{word!r} is another mixture for every model: counted as {base}; serve.weights.bits states the mean")
        how = quantization(base)
        tensors = typed_tensors(network, how)
        return GgufWeights(tensors, sum(t.nbytes for t in tensors), sum(t.tensor.elements for t in tensors), sum(t.nbytes for t in tensors))
