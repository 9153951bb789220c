"""In which formats a serving engine loads the weights of a model."""

from __future__ import annotations

from msgspec.structs import replace

from everybyte.basics.dtypes import BF16, DTYPES, DType
from everybyte.basics.errors import Unsupported
from everybyte.basics.origin import inferred
from everybyte.job import Serve
from everybyte.layers.network import Network
from everybyte.layers.setup import Kernels, Packed, Setup
from everybyte.rules.choices import Choices
from everybyte.rules.quantization import FORMATS

PLAIN = ("lm_head", "embed_out", "*.gate", "*.router", "*shared_expert_gate", "*visual.*", "*vision*")
"""Linear layers that quantisers leave alone: the head, routers, towers of images."""
RENAMED = {"awq-marlin": "awq", "gptq-marlin": "gptq", "marlin": "gptq", "autoround": "gptq", "w8a8": "int8", "w4a16": "int4", "w4a8": "int4"}
"""Formats whose matrices take the same bytes as those of a known one, but for the order of their numbers."""
GROUPS = {"gptq": 128, "awq": 128, "int4": 128, "nf4": 64, "fp4": 64}


def setup_of(serve: Serve, network: Network, choices: Choices, head: tuple[DType, Packed | None] | None = None) -> Setup:
    """How the network is stored on the device. `head`: the formats where the engine has its own (see `weights_of`)."""
    weights, packed = head or weights_of(serve, network, choices)
    return Setup(weights=weights, grad=False, trainable=(), packed=packed, kernels=Kernels(loss="logits"))


def weights_of(serve: Serve, network: Network, choices: Choices) -> tuple[DType, Packed | None]:
    """(type of what is not packed, the packed format or None). Default: the checkpoint's own. Raises Unsupported for a format without a rule."""
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
    kind = RENAMED.get(word, word)
    if kind not in FORMATS:
        raise Unsupported("serve.weights.format", f"{word!r} is not answered here; answered are bf16, fp16, fp32, {', '.join(sorted({*FORMATS, *RENAMED}))}")
    assert asked is not None
    if network.stored is not None and network.stored.format == kind and asked.group_size in (None, network.stored.group_size):
        return plain, _served(network.stored)
    group = asked.group_size or GROUPS.get(kind, 0)
    bits = int(asked.bits) if asked.bits else 8 if kind in ("fp8", "int8") else 4
    return plain, Packed(kind, PLAIN, group, double=bool(asked.double), bits=bits, experts=True)


def _served(stored: Packed) -> Packed:
    """Engines keep joined experts packed as well."""
    return replace(stored, experts=True, skip=tuple(dict.fromkeys((*stored.skip, *PLAIN))))
