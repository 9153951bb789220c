"""The cache of each layer on one rank, as vLLM's layers ask for it (model_executor/layers/attention, mamba/mamba_utils.py; worker/cache_engine.py)."""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm, prod
from typing import Any, NamedTuple

from msgspec.structs import replace

from everybyte.basics.dtypes import DTYPES
from everybyte.basics.errors import Unsupported
from everybyte.basics.units import ceil_div, round_up
from everybyte.engines.vllm import compressed
from everybyte.engines.vllm.network import first_with
from everybyte.engines.vllm.pages import Spec
from everybyte.engines.vllm.release import is_v1
from everybyte.engines.vllm.settings import Settings
from everybyte.layers.network import Network, Run, declare, hidden_dims
from everybyte.layers.recording.size import elements
from everybyte.layers.recording.tape import Cache
from everybyte.models.count import DECLARE
from everybyte.rules.step.cache import LATENT

BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "fp8_ds_mla": 1, "bfloat16": 2, "float16": 2, "float32": 4}
"""Of a number, by --kv-cache-dtype."""
PER_HEAD = {"int8_per_token_head": 1.0, "fp8_per_token_head": 1.0, "int4_per_token_head": 0.5}
"""Bytes of a number in formats that keep a scale in fp32 for every token and head, of keys and of values (v1/kv_cache_interface.py)."""
SPARSE_ROW = 656
"""fp8_ds_mla: 512 numbers in fp8, 4 scales in fp32, 64 numbers in bf16 (v1/attention/backends/mla/flashmla_sparse.py)."""
SCALED = 128
"""Numbers of an index key that share a scale in fp32 (models/deepseek_v2.py DeepseekV32IndexerCache)."""
PAGE = 16
"""Default tokens of a block."""


class Layers(NamedTuple):
    """Caches of the layers of one stage, before pages are made equal."""

    specs: tuple[Spec, ...]
    block: int
    """Tokens of a block of attention."""


def kv_bytes(s: Settings, numbers: int, heads: int) -> int:
    """Bytes of one token of one layer: `numbers` of keys and values in all, `heads` heads."""
    kind = s.kv_dtype
    if kind == "auto":
        return s.compute.nbytes(numbers)
    if kind in PER_HEAD:
        return int(numbers * PER_HEAD[kind]) + 2 * heads * 4
    if kind == "nvfp4":  # half a byte a number, a scale in fp8 for 16 of them
        return numbers // 2 + numbers // 16
    if kind not in BYTES:
        raise Unsupported("serve.kv_dtype", f"{kind!r} is not supported for vLLM; supported: auto, nvfp4, {', '.join([*BYTES, *PER_HEAD])}")
    return numbers * BYTES[kind]


def layers_of(network: Network, s: Settings, fields: Mapping[str, Any]) -> Layers:
    """The caches of the blocks of one stage, the draft's behind them."""
    found = [spec for run in network.runs for spec in _specs(network, run, s, fields) * run.count]
    if compressed.is_compressed(tuple(found)):
        if s.draft.endswith("mtp"):
            found += [spec for spec in found if spec.width == "v4 window"][-1:] * int(fields.get("num_nextn_predict_layers") or 0)
        return Layers(tuple(found), s.block_size or compressed.BLOCK)
    block = _block_size(found, s, network)
    found = [replace(spec, block=block) if spec.kind != "state" else spec for spec in found]
    states = [spec for spec in found if spec.kind == "state"]
    if states and is_v1(s.release):
        block, found = _beside_states(network, found, states, block, s)
    if s.draft.endswith("mtp"):  # assistants that read the caches of the network itself (Gemma 4) have none
        holders = [spec for spec in found if spec.kind in ("full", "latent") and spec.width != "index"]
        found += holders[-1:] * int(fields.get("mtp_num_hidden_layers") or fields.get("num_nextn_predict_layers") or 0)
    if not is_v1(s.release):
        found = [replace(spec, kind="full", window=0) if spec.kind in ("window", "chunk") else spec for spec in found if spec.kind != "state"]
    return Layers(tuple(found), block)


def _block_size(specs: list[Spec], s: Settings, network: Network) -> int:
    """--block-size, or what the attention backend wants (platforms/cuda.py check_and_update_config)."""
    if s.block_size:
        return s.block_size
    if any(spec.width == "index" for spec in specs) or "FLASHMLA" in s.attention or "FLASHINFER_MLA" in s.attention:
        return 64
    if "CUTLASS_MLA" in s.attention:
        return 128
    if any(spec.kind == "latent" for spec in specs) and not s.attention and s.release.has("latent_blocks_by_card"):
        return {9: 64, 10: 128 if s.release.has("cutlass_latent_blocks") else PAGE}.get(s.generation, PAGE)  # FlashMLA, CUTLASS MLA
    return PAGE


def _specs(network: Network, run: Run, s: Settings, fields: Mapping[str, Any]) -> list[Spec]:
    """The caches of one block."""
    caches = declare(run.layer, DECLARE, run.dims or hidden_dims(network.hidden)).caches
    if first_with(run.layer, "compressor") is not None:
        return list(compressed.specs(list(caches), s.block_size or compressed.BLOCK, s.kv_dtype))
    by_place: dict[str, list[Cache]] = {}
    for cache in caches:
        by_place.setdefault("" if cache.kind == "state" else cache.place + cache.kind, []).append(cache)
    specs = [_spec(run.layer, found, s, fields) for found in by_place.values()]
    if not is_v1(s.release):
        # V0 has one cache a layer, in which a request has blocks for its text and others for what cross-attention reads (worker/cache_engine.py)
        return [spec for spec in specs if spec.kind != "cross"] or [replace(spec, kind="full") for spec in specs]
    return specs


def _spec(layer: Any, caches: list[Cache], s: Settings, fields: Mapping[str, Any]) -> Spec:
    first = caches[0]
    numbers = sum(elements(cache.dims)[0] for cache in caches)
    if first.kind == "state":
        return Spec("state", s.context, sum(_state(layer, cache, s, fields) for cache in caches))
    if first.name == "index key":
        return Spec("latent", PAGE, numbers + numbers // SCALED * 4, width="index")
    if first.name == LATENT:
        return Spec("latent", PAGE, _latent_bytes(layer, numbers, s), width=str(numbers))
    mixer = first_with(layer, "kv_heads") or first_with(layer, "heads")
    heads = getattr(mixer, "kv_heads", None) or mixer.heads
    mine = max(heads // s.tp, 1)
    kind = "cross" if first.kind == "cross" else ("window" if first.window else "full")
    if kind == "window" and fields.get("attention_chunk_size"):
        kind = "chunk"
    return Spec(kind, PAGE, kv_bytes(s, numbers // heads * mine, mine), first.window, width=f"{mine}x{numbers // heads}")  # type: ignore[arg-type]


def _latent_bytes(layer: Any, numbers: int, s: Settings) -> int:
    """Of one token: every rank has the whole latent. 0.7.2 to 0.7.x start rows at multiples of 256 bytes (envs.py VLLM_CUDA_MEM_ALIGN_KV_CACHE)."""
    sparse = first_with(layer, "indexer")
    if s.kv_dtype == "fp8_ds_mla" or (s.kv_dtype == "fp8" and sparse is not None and sparse.indexer is not None and "FLASHINFER" not in s.attention):
        return SPARSE_ROW
    row = kv_bytes(s, numbers, 1)
    return round_up(row, 256) if s.release.has("aligns_latents") else row


def _state(layer: Any, cache: Cache, s: Settings, fields: Mapping[str, Any]) -> int:
    """Bytes of one rank's part of one state of a layer (mamba_utils.py MambaStateShapeCalculator, MambaStateDtypeCalculator)."""
    plain = s.compute if s.state_dtype == "auto" else DTYPES[_short(s.state_dtype)]
    if cache.name == "conv":
        channels, kernel = (d.size for d in cache.dims)
        mamba = first_with(layer, "groups", "state", "head_dim")
        if mamba is not None and mamba.groups % s.tp:  # groups are repeated so that every rank has those of its heads
            channels += 2 * (s.tp - mamba.groups) * mamba.state
        return plain.nbytes(channels // s.tp * (kernel - 1 + s.draft_tokens))
    if first_with(layer, "full_gate") is not None:  # Kimi's delta attention keeps fp32
        kind = DTYPES["fp32"]
    else:
        asked = s.recurrent_dtype
        if asked == "auto":
            asked = str(fields.get("mamba_ssm_dtype") or fields.get("mamba_ssm_cache_dtype") or "auto")
        kind = plain if asked == "auto" else DTYPES[_short(asked)]
    return kind.nbytes(prod(d.size for d in cache.dims) // s.tp)


def _short(word: str) -> str:
    words = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
    name = words.get(word, word)
    if name not in DTYPES:
        raise Unsupported("serve.extra.mamba_ssm_cache_dtype", f"{word!r} is unknown; supported: {', '.join(words)}")
    return name


def _beside_states(network: Network, found: list[Spec], states: list[Spec], block: int, s: Settings) -> tuple[int, list[Spec]]:
    """Attention's block grows until its page holds a state, whose page is padded to the same length (HybridAttentionMambaModelConfig; from 0.21 on
    platforms/interface.py _align_hybrid_block_size)."""
    mode = _mode(network, s)
    attention = [spec for spec in found if spec.kind != "state"]
    state = max(spec.bytes for spec in states)
    every = s.context
    if attention:
        token, latent = max(spec.bytes for spec in attention), any(spec.kind == "latent" for spec in attention)
        step = _alignment(s, latent=latent)
        if mode == "all":
            chunk = lcm(s.state_block or _chunk(network), step)
            every = block = max(block, chunk * ceil_div(ceil_div(state, token), chunk))
        else:
            block = max(block, step * ceil_div(state, step * token))
        every = block if mode != "none" else every
        page = block * token
    else:
        page = state
        every = block if mode != "none" else every
    more = int(s.release.has("checkpoints_prefills") and any(first_with(run.layer, "groups", "state", "chunk") is not None for run in network.runs))
    held = {"none": 1 + s.draft_tokens, "align": 2 + more + s.draft_tokens, "all": 0}[mode]
    return block, [
        replace(spec, block=every, states=held, padded=page if page > spec.bytes else 0) if spec.kind == "state" else replace(spec, block=block)
        for spec in found
    ]


def _mode(network: Network, s: Settings) -> str:
    """mamba_cache_mode: how many states of a request are kept. Prefix caching needs more than the last one (models/config.py MambaModelConfig)."""
    attends = any(first_with(run.layer, name) is not None for run in network.runs for name in ("kv_heads", "kv_rank"))
    caching = (s.release.has("caches_hybrid_prefixes") and attends) if s.prefix_caching is None else s.prefix_caching
    if not caching:
        return "none"
    mamba = s.release.has("keeps_states_by_block") and any(first_with(run.layer, "conv_bias", "kernel") is not None for run in network.runs)
    return s.state_mode if s.state_mode in ("align", "all") and (mamba or s.state_mode == "align") else ("all" if mamba else "align")


def _alignment(s: Settings, *, latent: bool) -> int:
    """Tokens that a block of attention is a multiple of."""
    if latent:
        return 128 if "CUTLASS" in s.attention or s.release.has("wide_latent_blocks") else 64
    return max(16, s.block_size) if s.release.has("block_size_counts_states") else 16


def _chunk(network: Network) -> int:
    """Tokens that the kernel of a state-space layer works off at once."""
    found = next((first_with(run.layer, "chunk") for run in network.runs if first_with(run.layer, "chunk")), None)
    return int(found.chunk) if found is not None else 256


def batches(s: Settings) -> int:
    """Tokens under way that a window's cache must have room for."""
    return s.batched_tokens * (s.release.whole("in_flight") if s.pp == 1 else s.pp)
