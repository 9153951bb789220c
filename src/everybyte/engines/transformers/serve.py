"""Accounts for inference with transformers: `generate` with a dynamic cache, or one forward pass over the prompt."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from msgspec.structs import replace

from everybyte.basics.dtypes import DTYPES, DType
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.origin import default_of, inferred
from everybyte.catalog.releases import Release, release_in
from everybyte.engines.transformers.extra import ServeKeys
from everybyte.engines.transformers.rotary import table_lines
from everybyte.job import Job, Serve
from everybyte.job.extra import section
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import AttentionKernel, ExpertsKernel, Kernels, Packed, Setup
from everybyte.layers.recording.size import Batch
from everybyte.models.source import checkpoint_of
from everybyte.models.stored import PLAIN_ROUTERS
from everybyte.rules.accounting.account import Account, Device, Rank
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.quantization.gguf.types import is_gguf
from everybyte.rules.serving.generation import Generation
from everybyte.rules.serving.weights import packing
from everybyte.rules.step.cache import Format, passes_window, price

if TYPE_CHECKING:
    from everybyte.checkpoint import Checkpoint

NAME = "transformers"
DEFAULT_CONTEXT = 4096
ATTENTION: dict[str, AttentionKernel] = {
    "eager": "eager",
    "sdpa": "sdpa",
    "flash2": "flash",
    "flash3": "flash",
    "flash_attention_2": "flash",
    "flash_attention_3": "flash",
}


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of inference on one GPU."""
    assert job.serve is not None
    serve, choices = job.serve, ResolvedSettings()
    keys = section(serve.extra, ServeKeys, "serve.extra")
    refuse_unknown(serve, keys)
    stored = checkpoint_of(job.model)
    weights, packed = weights_of(serve, network, stored, choices)
    context = choices.pick("serve.context", serve.context, min(network.max_positions or DEFAULT_CONTEXT, DEFAULT_CONTEXT), default_of(NAME))
    sequences = choices.pick("serve.sequences", serve.sequences, 1, default_of(NAME))
    attention = choices.pick("serve.attention", serve.attention, "sdpa", default_of(NAME))
    if attention not in ATTENTION:
        raise Unsupported("serve.attention", f"{attention!r} is not one of {', '.join(ATTENTION)}")
    kind = format_of(serve, weights, choices)
    new_tokens = new_tokens_of(keys, context)
    one_pass = keys.use_cache is not None
    caches = keys.use_cache is not False
    if one_pass:
        choices.assume("one forward pass over the whole context with the logits of all positions (extra.use_cache is given); without that key, generate()")
    else:
        choices.assume(f"the prompt has {context - new_tokens:,} tokens and generate() adds {new_tokens:,}; extra.new_tokens changes that")
    release = release_in(serve.version, "transformers")
    experts: ExpertsKernel = "grouped" if release.has("grouped_experts") else "loop"
    kernels = Kernels(attention=ATTENTION[attention], loss=_logits(release, one_pass=one_pass), experts=experts)
    past_window = passes_window(network, context)
    setup = Setup(weights=weights, grad=False, trainable=(), packed=packed, kernels=kernels, single=sequences == 1, past_window=past_window)
    length = context if one_pass else context - new_tokens
    memory = encoder_tokens(network, keys, length)
    bill = Generation(
        network,
        setup,
        Batch(sequences, length, length, memory),
        Batch(sequences, 1, context, memory),
        kind,
        device.compute_capability,
        caches=caches,
        decodes=not one_pass,
        beside=table_lines(network, release, weights),
    )
    figures = cache_figures(network, bill)
    if stored is not None and stored.tensors:
        figures["file_bytes"] = stored.metadata.get("file_bytes") or sum(tensor.nbytes for tensor in stored.tensors)
    return Account((Rank(bill),), choices, figures=figures)


def _logits(release: Release, *, one_pass: bool) -> str:
    """Which positions have logits, and in which type."""
    if one_pass:
        return "raised-logits" if release.has("raises_logits") else "logits"
    return "raised-logits" if release.has("keeps_all_logits") else "last-logits"


def refuse_unknown(serve: Serve, keys: ServeKeys) -> None:
    """Settings of other engines, and libraries that are not transformers."""
    mesh = serve.mesh
    if mesh is not None and any((v or 1) > 1 for v in (mesh.tp, mesh.pp, mesh.ep, mesh.dp, mesh.cp)):
        raise Unsupported("serve.mesh", "inference over several GPUs is not supported yet; supported: one GPU")
    if keys.library != NAME:
        raise Unsupported("serve.extra.library", f"{keys.library!r} pipelines are not supported yet; supported: single transformers models")


def weights_of(serve: Serve, network: Network, stored: Checkpoint | None, choices: ResolvedSettings) -> tuple[DType, Packed | None]:
    """(type of what is not packed, the packed format). Default: the checkpoint's own."""
    given = serve.weights
    if given is None or given.format is None:
        if network.stored is not None:
            choices.note("serve.weights.format", network.stored.format, inferred("quantization_config of the checkpoint"))
            return _sixteen_bit(network.dtype), network.stored
        kind = stored_dtype(stored) or network.dtype
        choices.note("serve.weights.format", kind.name, inferred("the checkpoint's own type"))
        return kind, None
    word = choices.pick("serve.weights.format", given.format, "", "")
    if word in ("fp32", "bf16", "fp16"):
        return DTYPES[word], None
    if is_gguf(word):
        choices.assume(f"a GGUF file in {word} is dequantised while it is loaded (integrations/ggml.py): 16 bits a number stay")
        return _sixteen_bit(network.dtype), None
    packed = packing(given)
    skip = ("lm_head", "embed_out", *(PLAIN_ROUTERS if packed.format in ("gptq", "awq") else ()))
    group = given.group_size or packed.group_size or (128 if packed.format == "fp8" else 64)
    return _sixteen_bit(network.dtype), replace(packed, skip=skip, group_size=group, experts=packed.format in ("fp8", "mxfp4"))


def _sixteen_bit(kind: DType) -> DType:
    return kind if kind.bits == 16 else DTYPES["bf16"]


def stored_dtype(stored: Checkpoint | None) -> DType | None:
    """The type of most numbers of a checkpoint's files, where the files were read; GGUF types are dequantised at loading and do not count."""
    counts: dict[str, int] = {}
    for tensor in stored.tensors if stored is not None else ():
        counts[tensor.dtype] = counts.get(tensor.dtype, 0) + prod(tensor.shape)
    most = max(counts, key=lambda name: counts[name], default="")
    return DTYPES[most] if most in ("fp32", "bf16", "fp16") else None


def format_of(serve: Serve, weights: DType, choices: ResolvedSettings) -> Format:
    """How the cache is stored."""
    given = serve.kv_dtype
    word = choices.pick("serve.kv_dtype", given.k if given else None, "auto", default_of(NAME))
    if given is not None and given.v not in (None, given.k):
        raise Unsupported("serve.kv_dtype.v", "transformers stores K and V in the same format")
    if word == "auto":
        return Format(weights if weights.bits <= 32 else DTYPES["bf16"])
    if word in ("bf16", "fp16", "fp32"):
        return Format(DTYPES[word])
    if word in ("int8", "int4"):
        return Format(weights, bits=int(word[3:]))
    raise Unsupported("serve.kv_dtype", f"{word!r} is not a cache of transformers; it has auto, bf16, fp16, fp32, int8 and int4")


def new_tokens_of(keys: ServeKeys, context: int) -> int:
    """Tokens that are generated; the rest of the context is the prompt."""
    if keys.new_tokens >= max(context, 2):
        raise BadInput("serve.extra.new_tokens", f"must be a whole number from 1 to the context ({context:,}) less 1, not {keys.new_tokens}")
    return keys.new_tokens


def encoder_tokens(network: Network, keys: ServeKeys, length: int) -> int:
    """Positions of the encoder that cross-attention reads; an encoder of text is given the whole prompt."""
    return network.memory(length) if keys.encoder_tokens is None else keys.encoder_tokens


def cache_figures(network: Network, bill: Generation) -> dict[str, int]:
    """Weights, and the cache's price."""
    totals = bill.totals()
    figures = {"weights": totals["load"], "static.allocated": totals["load"]}
    if bill.caches:
        batch = bill.last if bill.decodes else bill.prompt
        cost = price(network, batch, bill.kind, windows=bill.decodes)
        figures |= {"kv.bytes_per_token": cost.per_token, "kv.bytes": cost.all - cost.states}
        if cost.windows:
            figures["kv.swa_bytes"] = cost.windows
        if cost.states:
            figures["state.bytes"] = cost.states
    return figures
