"""How large a GGUF file is: tensors by their types, the head with the tensor table, the tokenizer (gguf-py gguf_writer.py)."""

from __future__ import annotations

from typing import Any

from everybyte.basics.errors import Unsupported
from everybyte.basics.record import Record
from everybyte.basics.units import round_up
from everybyte.catalog.releases import Release
from everybyte.checkpoint import Checkpoint
from everybyte.job import Serve
from everybyte.job.extra import Section, section
from everybyte.layers.network import Network
from everybyte.models.count import parameter_count
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.quantization.gguf.tensors import Converter, GgufTensor, Typed, gguf_tensors, typed_tensors
from everybyte.rules.quantization.gguf.types import FORK_TYPES, MIXTURES, NEEDS_IMATRIX, RELEASE, Quantization, quantization
from everybyte.rules.quantization.gguf.vocabulary import vocabulary_bytes, vocabulary_of

ALIGNMENT = 32
"""GGUF_DEFAULT_ALIGNMENT."""
METADATA = 1600
"""Bytes of names and values of some 30 settings; licences, tags and chat templates make 1 to 12 kB of it, which no rule says."""


class FileKeys(Section, frozen=True, kw_only=True):
    """Keys of serve.extra about how a file was made."""

    imatrix: bool | None = None
    """Whether quantize had an importance matrix."""
    fork: str = ""
    """The program: llama.cpp or ik_llama.cpp."""


class GgufWeights(Record, frozen=True):
    """The weights of a network in a GGUF file."""

    tensors: tuple[Typed, ...]
    """Empty where only the mean number of bits is known."""
    nbytes: int
    """Of all tensors."""
    elements: int
    file_bytes: int
    """With head, tokenizer and padding."""


def gguf_weights(serve: Serve, network: Network, choices: ResolvedSettings, given: dict[str, Any] | None = None) -> GgufWeights:
    """The weights in the format of `serve.weights`: by the mean bits where they are stated, else by quantize's rules for the name.

    Raises BadInput for a name that is no quantisation, Unsupported for files of other formats.
    """
    asked, keys = serve.weights, section(serve.extra, FileKeys, "serve.extra")
    word = asked.format if asked is not None and asked.format else None
    release = build_of(serve)
    fork = keys.fork.casefold().startswith("ik")
    converter = Converter(release or RELEASE, both_latents=fork)
    bits = (given or {}).get("bits_per_weight") or (asked.bits if asked is not None else None)
    if bits:
        return _by_mean(network, converter, float(bits), (given or {}).get("params"))
    if word is None:
        word = network.dtype.name if network.dtype.bits == 16 else "bf16"
        choices.assume(f"weights in {word}, as converted; serve.weights names a quantisation")
    if word == "mixed" or (word.endswith("_xl") and word != "q3_k_xl"):
        raise Unsupported("serve.weights", f"{word!r} is another mixture for every model; state the mean as serve.weights: {{format: {word}, bits: ...}}")
    how = quantization(word, keys.imatrix, release or RELEASE)
    _tell(how, keys, release, choices)
    tensors = typed_tensors(network, how, converter)
    size = file_size(tensors, vocabulary_bytes(vocabulary_of(network.family, network.vocab)[0]))
    return GgufWeights(tensors, sum(t.nbytes for t in tensors), sum(t.tensor.elements for t in tensors), size)


def _by_mean(network: Network, converter: Converter, bits: float, parameters: int | None) -> GgufWeights:
    """llama.cpp prints bytes of tensors · 8 / elements as bits per weight."""
    elements = int(parameters or sum(t.elements for t in gguf_tensors(network, converter)) or parameter_count(network))
    nbytes = int(elements * bits / 8)
    return GgufWeights((), nbytes, elements, nbytes)


def file_size(tensors: tuple[Typed, ...], vocabulary: int) -> int:
    """Bytes of a file: the head with `vocabulary` bytes of tokenizer and an entry for each tensor, then each tensor on a multiple of the alignment."""
    table = sum(8 + len(t.tensor.name) + 4 + 8 * len(t.tensor.shape) + 4 + 8 for t in tensors)
    head = 24 + METADATA + vocabulary + table
    return round_up(head, ALIGNMENT) + sum(round_up(t.nbytes, ALIGNMENT) for t in tensors)


def _tell(how: Quantization, keys: FileKeys, release: Release | None, choices: ResolvedSettings) -> None:
    """What the answer takes for granted."""
    if how.mixture in NEEDS_IMATRIX and keys.imatrix is False:
        raise Unsupported("serve.extra.imatrix", f"quantize refuses to make {how.mixture} without an importance matrix")
    if how.mixture in FORK_TYPES or how.mixture not in MIXTURES:
        choices.assume(f"{how.mixture} for every matrix but the output: the fork's mixtures are no public rules; state serve.weights.bits")
    elif MIXTURES[how.mixture] not in ("f32", "f16", "bf16"):
        if keys.imatrix is None:
            choices.assume(f"quantised {'with' if how.imatrix else 'without'} an importance matrix; serve.extra.imatrix says otherwise")
        if release is None:
            choices.assume(f"types of the tensors by the quantize of llama.cpp {how.release.text}; serve.version chooses another build")


def build_of(serve: Serve) -> Release | None:
    """The build of llama.cpp (`b3596`), None where the job states none."""
    text = (serve.version or "").casefold().removeprefix("b").split("-")[0]
    return Release("llama.cpp", (int(text),)) if text.isdigit() else None


def stored_weights(stored: Checkpoint | None) -> GgufWeights | None:
    """The weights of the model's own GGUF file or files by its tensor table; None where the model is none."""
    if stored is None or stored.metadata.get("format") != "gguf" or not stored.tensors:
        return None
    tensors = tuple(Typed(GgufTensor(t.name, t.shape, _layer(t.name)), _KINDS.get(t.dtype, t.dtype), t.nbytes) for t in stored.tensors)
    return GgufWeights(tensors, sum(t.nbytes for t in tensors), sum(t.tensor.elements for t in tensors), int(stored.metadata["file_bytes"]))


_KINDS = {"fp32": "f32", "fp16": "f16"}


def _layer(name: str) -> int:
    """The block that a tensor is in, -1 for none."""
    number = name.partition("blk.")[2].partition(".")[0]
    return int(number) if number.isdigit() else -1
