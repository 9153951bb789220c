"""In which formats a serving engine loads the weights of a model."""

from __future__ import annotations

from fractions import Fraction

from msgspec.structs import replace

from everybyte.basics.dtypes import BF16, DTYPES, DType
from everybyte.basics.errors import Unsupported
from everybyte.basics.origin import inferred
from everybyte.job import Serve
from everybyte.job.form import Weights
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Kernels, Packed, Setup
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.quantization.gguf.tensors import mean_bits
from everybyte.rules.quantization.gguf.types import is_gguf
from everybyte.rules.quantization.packed import FORMATS

PLAIN = ("lm_head", "embed_out", "*.gate", "*.router", "*shared_expert_gate", "*visual.*", "*vision*")
"""Linear layers that quantisers leave alone: the head, routers, towers of images."""
RENAMED = {
    "awq-marlin": "awq",
    "gptq-marlin": "gptq",
    "marlin": "gptq",
    "autoround": "gptq",
    "w8a8": "int8",
    "w8a16": "int8",
    "w4a16": "int4",
    "w4a8": "int4",
    "eetq": "int8",
    "quanto": "int8",
    "torchao": "int4",
    "hqq": "mlx",
    "uint4": "int4",
    "uint8": "int8",
    "w8a8-fp8": "fp8",
    "w4a8-fp8": "int4",
}
"""Formats whose matrices take the same bytes as those of a known one: another order of the numbers, a scale of each output (EETQ, quanto), of each group
(torchao's int4), a scale and a zero of each group (HQQ)."""
GROUPS = {"gptq": 128, "awq": 128, "int4": 128, "nf4": 64, "fp4": 64, "mlx": 64}
BY_MEAN = {"aqlm": 0, "vptq": 0, "spqr": 0, "higgs": 0, "mixed": 0, "bitnet": 2, "fp6": 6, "int6": 6, "int5": 5, "int3": 3, "int2": 2}
"""Formats that are counted by their bits a number, 0 where only the tool that packed them says how many."""
ELSEWHERE = {"exl2": "exllama", "exl3": "exllama", "mlx": "mlx", "nf4-torchao": "torchtune"}
"""Formats of one engine."""


def setup_of(serve: Serve, network: Network, choices: ResolvedSettings, head: tuple[DType, Packed | None] | None = None, *, reads_gguf: bool = False) -> Setup:
    """How the network is stored on the device. `head`: the formats where the engine has its own (see `weights_of`)."""
    weights, packed = head or weights_of(serve, network, choices, reads_gguf=reads_gguf)
    return Setup(weights=weights, grad=False, trainable=(), packed=packed, kernels=Kernels(loss="logits"))


def weights_of(serve: Serve, network: Network, choices: ResolvedSettings, *, reads_gguf: bool = False) -> tuple[DType, Packed | None]:
    """(type of what is not packed, the packed format or None). Default: the checkpoint's own. Raises Unsupported for a format without a rule, and for GGUF
    files where the engine does not read them."""
    plain = network.dtype if network.dtype.bits <= 16 and network.dtype.bits > 8 else BF16
    asked = serve.weights
    word = asked.format.casefold() if asked is not None and asked.format else None
    if word is None:
        if network.stored is not None:
            choices.note("serve.weights.format", network.stored.format, inferred("quantization_config of the checkpoint"))
            return plain, _served(network.stored)
        choices.note("serve.weights.format", plain.name, inferred("the checkpoint's own type; engines load fp32 as 16 bits"))
        return plain, None
    choices.pick("serve.weights.format", word, "", "")
    if word in ("fp32", "bf16", "fp16"):
        return DTYPES[word], None
    assert asked is not None
    if reads_gguf and is_gguf(word) and not asked.bits:
        mean = mean_bits(network, word)
        choices.assume(f"a GGUF file in {word}: its matrices have {float(mean):.2f} bits a number, and the embedding is counted in 16 bits")
        return plain, Packed("mean", bits=mean.numerator, parts=mean.denominator, skip=(), experts=True)
    packed = packing(asked)
    if network.stored is not None and network.stored.format == packed.format and asked.group_size in (None, network.stored.group_size):
        return plain, _served(network.stored)
    return plain, replace(packed, skip=PLAIN, experts=True)


def packing(asked: Weights) -> Packed:
    """The packed form that `serve.weights` names. Raises Unsupported for a format without a rule, with the ways out."""
    word = (asked.format or "").casefold()
    kind = RENAMED.get(word, word)
    if kind in FORMATS and kind != "mean" and (kind not in ELSEWHERE or word in RENAMED):
        bits = int(asked.bits) if asked.bits else 8 if kind in ("fp8", "int8") else 4
        return Packed(kind, group_size=asked.group_size or GROUPS.get(kind, 0), double=bool(asked.double), bits=bits)
    if word in ELSEWHERE:
        raise Unsupported("serve.weights.format", f"{word!r} is a format of {ELSEWHERE[word]}; supported here: {_supported()}")
    if is_gguf(word):
        readers = "which llama.cpp, ollama, vLLM and SGLang serve"
        raise Unsupported("serve.weights.format", f"{word!r} is a format of GGUF files, {readers}; supported here: {_supported()}")
    stated = asked.bits or BY_MEAN.get(word, 0)
    if not stated:
        raise Unsupported(
            "serve.weights.format", f"{word!r} has no public layout: state serve.weights: {{format: {word}, bits: ...}}; supported: {_supported()}"
        )
    mean = Fraction(str(stated)).limit_denominator(1000)
    return Packed("mean", bits=mean.numerator, parts=mean.denominator)


def _supported() -> str:
    return ", ".join(["bf16", "fp16", "fp32", *sorted({*FORMATS, *RENAMED} - {*ELSEWHERE, "mean"}), *sorted(BY_MEAN)])


def _served(stored: Packed) -> Packed:
    """Engines keep joined experts packed as well."""
    return replace(stored, experts=True, skip=tuple(dict.fromkeys((*stored.skip, *PLAIN))))
