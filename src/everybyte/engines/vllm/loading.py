"""In which form vLLM loads a model: what stays unquantised, scales that are unfolded, towers that are left out, the draft beside it."""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from everybyte.basics.record import Record
from everybyte.engines.vllm.settings import Settings
from everybyte.job import Serve
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Kernels, Setup
from everybyte.models.source import network_of
from everybyte.rules.accounting.resolved_settings import ResolvedSettings

UNNAMED = ("mtp", "ngram", "suffix", "medusa")
"""Methods of speculation that need no model of their own beside the network, or whose heads are not modelled."""


class Draft(Record, frozen=True):
    """A draft model, run by the same ranks."""

    network: Network
    setup: Setup


def draft_of(serve: Serve, s: Settings, choices: ResolvedSettings) -> Draft | None:
    """The draft model of a job, if it names one."""
    asked = serve.draft
    if asked is None:
        return None
    if asked.model is None:
        if not s.draft.endswith(UNNAMED):
            choices.assume("speculative decoding: weights and cache of the draft are not counted; serve.draft.model names it")
        return None
    network = network_of(asked.model, "serve.draft.model")
    return Draft(network, Setup(weights=s.compute, grad=False, trainable=(), packed=network.stored, kernels=Kernels(loss="logits")))


def unfolded(setup: Setup, s: Settings) -> Setup:
    """bitsandbytes' 4 bits are loaded with quantised scales, which 0.9 and later turn back into fp32 (bitsandbytes_loader.py, compress_statistics and
    _dequantize_dq)."""
    if setup.packed is None or setup.packed.format not in ("nf4", "fp4"):
        return setup
    return replace(setup, packed=replace(setup.packed, double=not s.release.has("unfolds_scales")))


@lru_cache(maxsize=64)
def text_alone(network: Network) -> Network:
    """--language-model-only: towers are not loaded."""
    return replace(network, towers=())


def served(setup: Setup, network: Network, choices: ResolvedSettings) -> Setup:
    """What stays unquantised where the job does not point at files: published NVFP4 checkpoints of networks with experts pack the experts alone."""
    if setup.packed is None or setup.packed.format != "nvfp4" or network.stored is not None:
        return setup
    if not network.experts:
        choices.assume("NVFP4: every linear layer but the head is packed; checkpoints differ in what they leave in 16 bits, point model at the files to know")
        return setup
    choices.assume("NVFP4: the routed experts alone are packed, as in published checkpoints; point model at the files to know")
    return replace(setup, packed=replace(setup.packed, skip=(*setup.packed.skip, "*self_attn", "*linear_attn", "*shared_expert", "*shared_experts")))
