"""What a vLLM job asks for, with the defaults of its version."""

from __future__ import annotations

import json
from fractions import Fraction

from msgspec.structs import replace

from everybyte.basics.dtypes import DTYPES, DType
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.origin import default_of, inferred
from everybyte.basics.record import Record
from everybyte.basics.units import GiB
from everybyte.catalog.generations import by_word, major_of
from everybyte.catalog.gpus import Gpu, find_gpu
from everybyte.catalog.releases import Release
from everybyte.engines.vllm.extra import Keys
from everybyte.engines.vllm.release import V0, is_v1, release_of
from everybyte.job import CudaGraphs, Job, Serve, ServeLora
from everybyte.job.extra import section
from everybyte.layers.network import Network
from everybyte.rules.accounting.account import Device
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.quantization.gguf.tensors import mean_bits
from everybyte.rules.quantization.gguf.types import is_gguf
from everybyte.rules.step.cache import is_latent, stores

MANY_ITEMS = 999
"""config/multimodal.py get_limit_per_prompt, where the job is silent."""
CONTEXT = 4096
"""Where neither the job nor the network says how long a sequence may be."""
OLDEST_V1 = 8
"""Major compute capability that V1 asks for; while it is there, V0 runs on older cards (engine/arg_utils.py _is_v1_supported_oracle)."""
CHUNKS_ABOVE = 32 * 1024
"""V0 cuts prompts up by itself where max_model_len is longer (config.py ModelConfig, engine/arg_utils.py create_engine_config)."""


class Lora(Record, frozen=True):
    """Slots of adapters."""

    rank: int = 16
    count: int = 1


class Settings(Record, frozen=True):
    """One vLLM process, defaults filled in."""

    release: Release
    context: int
    """max_model_len."""
    batched_tokens: int
    sequences: int
    fraction: float
    """gpu_memory_utilization."""
    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    experts_parallel: bool = False
    """Whole experts a rank, not a slice of each."""
    block_size: int = 0
    """0: the engine's own choice."""
    kv_dtype: str = "auto"
    compute: DType = DTYPES["bf16"]
    gguf: Fraction = Fraction()
    """Bits a number of the matrices of a GGUF file; 0 for other formats."""
    generation: int = 8
    """Major compute capability."""
    eager: bool = False
    sizes: tuple[int, ...] = ()
    """Batch sizes that are captured, where the job lists them."""
    attention: str = ""
    lora: Lora | None = None
    draft: str = ""
    draft_tokens: int = 0
    images: bool = True
    """Images and the like may be sent."""
    videos: bool = True
    """Videos may be sent, to a network that takes them."""
    stills: bool = True
    """Images may be sent."""
    profiles_images: bool = True
    prefix_caching: bool | None = None
    state_mode: str = ""
    """mamba_cache_mode, where the job says."""
    state_block: int = 0
    state_dtype: str = "auto"
    recurrent_dtype: str = "auto"
    offload: int = 0
    """Bytes of weights that stay in host memory."""
    pool_bytes: int = 0
    """kv_cache_memory_bytes: the pool, whatever the budget leaves."""
    joined: bool = False
    """The hybrid cache manager is switched off."""


def settings_of(job: Job, network: Network, device: Device, weights: DType, choices: ResolvedSettings) -> Settings:
    """Reads `serve` and `serve.extra`, whose keys are vLLM's own arguments, with - or _."""
    assert job.serve is not None
    serve = job.serve
    keys = section(serve.extra, Keys, "serve.extra")
    release = release_of(serve, keys, choices)
    if is_v1(release) and release.has("has_v0") and keys.VLLM_USE_V1 is None and (why := _falls_back(release, network, keys, device)):
        release = replace(release, variant=V0)
        choices.assume(f"vLLM {release.text} falls back to its engine V0: {why}")
    origin = default_of(f"vLLM {release.text}")
    context = choices.pick("serve.context", serve.context, network.max_positions or CONTEXT, inferred("the model's maximum"))
    mesh = serve.mesh
    tp, pp, dp = (((getattr(mesh, axis) if mesh else None) or 1) for axis in ("tp", "pp", "dp"))
    _check_gpus(job, tp, pp, dp)
    stills, videos = (_limit(keys, kind) > 0 for kind in ("image", "video"))
    images = serve.multimodal is not False and not keys.language_model_only and any(tower.name != "encoder" for tower in network.towers)
    images = images and (stills or videos)
    lora = _lora(serve, keys)
    batched, sequences = _limits(release, context, device, images=images, lora=lora is not None, mla=is_latent(network))
    sequences = choices.pick("serve.sequences", serve.sequences, sequences, origin)
    batched = choices.pick("serve.batched_tokens", serve.batched_tokens, max(batched, 0 if is_v1(release) else sequences), origin)
    fraction = choices.pick("serve.memory_fraction", serve.memory_fraction, release.share("memory_fraction"), origin)
    kv = serve.kv_dtype
    if kv is not None and kv.v not in (None, kv.k):
        raise Unsupported("serve.kv_dtype.v", "vLLM stores K and V in the same format")
    graphs = serve.cuda_graphs
    eager = graphs is False or keys.enforce_eager
    draft = serve.draft
    return Settings(
        release,
        context,
        batched,
        min(sequences, batched),
        fraction,
        tp,
        pp,
        dp,
        dcp=(mesh.cp if mesh else None) or 1 if keys.decode_context_parallel_size is None else keys.decode_context_parallel_size,
        experts_parallel=keys.enable_expert_parallel or ((mesh.ep if mesh else None) or 1) > 1,
        block_size=serve.block_size or 0,
        kv_dtype=choices.pick("serve.kv_dtype", kv.k if kv else None, "auto", origin),
        compute=_compute(keys, weights),
        gguf=gguf_bits(serve, network),
        generation=generation(device),
        eager=eager,
        sizes=(graphs.sizes or ()) if isinstance(graphs, CudaGraphs) else (),
        attention=_attention(serve, keys),
        lora=lora,
        draft=(draft.method or "draft") if draft else "",
        draft_tokens=(draft.tokens or 1) if draft else 0,
        images=images,
        videos=videos,
        stills=stills,
        profiles_images=not keys.skip_mm_profiling,
        prefix_caching=keys.enable_prefix_caching,
        state_mode=keys.mamba_cache_mode,
        state_block=keys.mamba_block_size,
        state_dtype=keys.mamba_cache_dtype,
        recurrent_dtype=keys.mamba_ssm_cache_dtype,
        offload=int(keys.cpu_offload_gb * GiB),
        pool_bytes=keys.kv_cache_memory_bytes or 0,
        joined=keys.disable_hybrid_kv_cache_manager,
    )


POOLING = ("embed", "embedding", "score", "classify", "reward", "pooling")
"""Values of --task and --runner that generate no text."""


def _falls_back(release: Release, network: Network, keys: Keys, device: Device) -> str:
    """Why V1 does not run a job in a release that still has V0; empty where it does."""
    if generation(device) < OLDEST_V1:
        return f"V1 needs compute capability {OLDEST_V1}.0"
    if any(tower.name == "encoder" for tower in network.towers) and not release.has("v1_runs_encoders"):
        return "a network with an encoder and cross-attention"
    if (keys.task or keys.runner or "") in POOLING and not release.has("v1_runs_pooling"):
        return "a task without generation"
    recurrent = any(cache.kind == "state" for store in stores(network) for cache in store.caches)
    return "a network with recurrent states" if recurrent and not release.has("v1_runs_states") else ""


def _limit(keys: Keys, kind: str) -> int:
    """How many items of a kind a prompt may hold, as --limit-mm-per-prompt says; 999 where it is silent. Raises BadInput for what is no number."""
    stated = keys.limit_mm_per_prompt
    if isinstance(stated, str):
        try:
            stated = json.loads(stated)
        except ValueError:
            stated = dict(part.partition("=")[::2] for part in stated.split(","))
    value = stated.get(kind, MANY_ITEMS) if isinstance(stated, dict) else MANY_ITEMS
    value = value.get("count", MANY_ITEMS) if isinstance(value, dict) else value
    if not str(value).isdigit():
        raise BadInput("serve.extra.limit_mm_per_prompt", f"has no whole number for {kind!r}: {value!r}")
    return int(value)


def gguf_type(serve: Serve) -> str:
    """The type or mixture of a GGUF file, whose blocks vLLM keeps as they are; empty for other formats."""
    word = ((serve.weights.format if serve.weights else None) or "").casefold()
    return word if is_gguf(word) or (word.startswith(("q", "iq", "tq")) and word in DTYPES) else ""


def gguf_bits(serve: Serve, network: Network) -> Fraction:
    """Bits a number of a GGUF file's matrices: those of its one type, those that the job states, or the mean of its mixture; 0 for other formats."""
    word = gguf_type(serve)
    if not word:
        return Fraction()
    stated = serve.weights.bits if serve.weights is not None else None
    if stated:
        return Fraction(str(stated)).limit_denominator(1000)
    return mean_bits(network, word)


def card(device: Device) -> Gpu | None:
    """The catalogue's card: also of a GPU that the job describes itself, where its name is known."""
    try:
        return find_gpu(device.name) if device.name else None
    except BadInput:
        return None


def generation(device: Device) -> int:
    """Major compute capability; Ampere where nothing is known."""
    found = card(device)
    return major_of(found.compute_capability if found else device.compute_capability)


def _check_gpus(job: Job, tp: int, pp: int, dp: int) -> None:
    gpus = job.hardware.gpus if job.hardware else None
    if gpus and gpus != tp * pp * dp:
        raise BadInput("serve.mesh", f"tp·pp·dp is {tp * pp * dp}, hardware.gpus is {gpus}: they must be equal")


def _limits(release: Release, context: int, device: Device, *, images: bool, lora: bool, mla: bool) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of a server by version, card and context (config.py SchedulerConfig; engine/arg_utils.py)."""
    if not is_v1(release):
        if context > CHUNKS_ABOVE and not images and not lora and not mla:
            return release.whole("chunk"), 256
        return max(context, 5120 if images else 2048), 256
    if not release.has("limits_by_card"):
        return 2048, 1024
    if release.has("larger_batch_on_largest_cards") and device.capacity >= 160 * GiB:
        return 16384, 1024
    large = device.capacity >= 70 * GiB and by_word(release, device.name, "small_batch") is None
    return (8192, 1024) if large else (2048, 256)


def _lora(serve: Serve, keys: Keys) -> Lora | None:
    asked = serve.lora
    if not asked and not keys.enable_lora:
        return None
    rank, count = (asked.rank, asked.count) if isinstance(asked, ServeLora) else (None, None)
    return Lora(rank or keys.max_lora_rank or Lora().rank, count or keys.max_loras or Lora().count)


def _compute(keys: Keys, weights: DType) -> DType:
    """--dtype, or that of the checkpoint."""
    words = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32", "float": "fp32"}
    word = keys.dtype
    if word == "auto":
        return weights if weights.bits in (16, 32) else DTYPES["bf16"]
    name = words.get(word, word)
    if name not in ("fp16", "bf16", "fp32"):
        raise BadInput("serve.extra.dtype", f"must be auto, {', '.join(words)}, not {word!r}")
    return DTYPES[name]


def _attention(serve: Serve, keys: Keys) -> str:
    listed = keys.attention_backends or keys.attention_backend or keys.VLLM_ATTENTION_BACKEND or serve.attention or ""
    return (listed if isinstance(listed, str) else listed[0]).upper()
