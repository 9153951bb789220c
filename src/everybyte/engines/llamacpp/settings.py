"""The settings of a llama.cpp job, with the defaults of its build."""

from __future__ import annotations

import re
from typing import NamedTuple

from everybyte.allocator.ggml import Kind, kind
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.basics.origin import default_of
from everybyte.catalog.releases import Release
from everybyte.engines.llamacpp.extra import Keys
from everybyte.engines.llamacpp.release import is_fork
from everybyte.job import Job, Serve
from everybyte.layers.network import Network
from everybyte.rules.accounting.resolved_settings import ResolvedSettings

NAME = "llama.cpp"
DEFAULT_CONTEXT, DEFAULT_BATCH, DEFAULT_UBATCH = 4096, 2048, 512
"""common/common.h n_batch, n_ubatch; a context of 0 means the model's own, which the server takes."""
FLASH = {"flash": True, "flash2": True, "on": True, "fa": True, "eager": False, "off": False, "none": False}
CACHE_KINDS = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1", "q6_0")
_SPELT = {"auto": "f16", "fp16": "f16", "fp32": "f32"}


class Settings(NamedTuple):
    """What a context is opened with."""

    release: Release
    context: int
    """Tokens of a stream: of a sequence where each has a part of the cache for itself, of all where it is unified."""
    ubatch: int
    slots: int
    unified: bool
    flash: bool
    key: Kind
    value: Kind
    whole_windows: bool
    outputs: int
    """Rows of logits that the front end asks for; 0: one for every token of a batch."""
    latent: int
    most_scores: int
    joins_experts: bool


def settings_of(job: Job, network: Network, release: Release, keys: Keys, choices: ResolvedSettings) -> Settings:
    """The settings of a job. Raises BadInput and Unsupported with the key."""
    serve = job.serve
    assert serve is not None
    slots = _slots(serve, network, release, choices)
    unified = _unified(serve, slots, release, choices)
    context = choices.pick("serve.context", serve.context, network.max_positions or DEFAULT_CONTEXT, "the model's own context")
    if slots > 1 and serve.unified_kv is False and unified:
        context *= slots  # one cache for all, which the job states by sequence
    batch = choices.pick("serve.batched_tokens", serve.batched_tokens, max(DEFAULT_BATCH, serve.ubatch or 0), default_of(NAME))
    ubatch = choices.pick("serve.ubatch", serve.ubatch, DEFAULT_UBATCH, default_of(NAME))
    total = context if unified else context * slots
    flash = flash_of(serve, release, choices)
    key, value = cache_kinds(serve, flash, choices)
    return Settings(
        release,
        context,
        min(ubatch, batch, total),
        slots,
        unified,
        flash,
        key,
        value,
        bool(serve.swa_full),
        _outputs(serve, slots, release, keys, choices),
        keys.mla if is_fork(release) else 0,
        keys.amb,
        keys.fmoe,
    )


def _slots(serve: Serve, network: Network, release: Release, choices: ResolvedSettings) -> int:
    """Slots matter to recurrent states and windows; elsewhere one sequence stands for all."""
    return choices.pick("serve.parallel_slots", serve.parallel_slots or serve.sequences, release.whole("slots"), default_of(NAME))


def _unified(serve: Serve, slots: int, release: Release, choices: ResolvedSettings) -> bool:
    """Whether all sequences share one cache: always before streams (b5900), by the job since; a server with default slots shares."""
    if slots == 1 or not release.has("has_streams"):
        return True
    return choices.pick("serve.unified_kv", serve.unified_kv, True, default_of(NAME))


def flash_of(serve: Serve, release: Release, choices: ResolvedSettings) -> bool:
    """Whether flash attention runs."""
    by_itself = release.has("flash_by_itself")
    word = choices.pick("serve.attention", serve.attention, "flash" if by_itself else "eager", default_of(NAME))
    if word in ("auto", "sdpa"):
        return by_itself
    if word not in FLASH:
        raise Unsupported("serve.attention", f"{word!r} is not an attention of llama.cpp; it has flash, eager and auto")
    return FLASH[word]


def cache_kinds(serve: Serve, flash: bool, choices: ResolvedSettings) -> tuple[Kind, Kind]:
    """Formats of keys and values. Raises BadInput for a packed V without flash attention, which llama.cpp refuses."""
    given = serve.kv_dtype
    words = [choices.pick("serve.kv_dtype.k", given.k if given else None, "fp16", default_of(NAME)), (given.v if given else None) or "fp16"]
    kinds = []
    for letter, word in zip("kv", words, strict=True):
        name = _SPELT.get(word, word)
        if name not in CACHE_KINDS:
            raise Unsupported(f"serve.kv_dtype.{letter}", f"{word!r} is no cache format of llama.cpp; it has {', '.join(CACHE_KINDS)}")
        kinds.append(kind(name))
    if kinds[1].block > 1 and not flash and serve.attention is not None:
        raise BadInput("serve.kv_dtype.v", f"{words[1]} needs flash attention (serve.attention: flash): llama.cpp refuses to start without it")
    return kinds[0], kinds[1]


def _outputs(serve: Serve, slots: int, release: Release, keys: Keys, choices: ResolvedSettings) -> int:
    """Rows of logits; 0: one for each token, the library's own default and that of every front end before mid-2026. llama-server of a later build, if the
    job names one, asks for one row a slot and one more for each drafted token."""
    stated = keys.n_outputs
    if stated is not None or not release.has("few_outputs"):
        return stated or 0
    if serve.version is None:
        choices.assume("logits of every token of a batch are reserved; llama-server since mid-2026 reserves one token per slot (serve.extra.n_outputs)")
        return 0
    drafted = serve.draft.tokens or 0 if serve.draft is not None else 0
    return slots * (1 + drafted)


class Override(NamedTuple):
    """A pattern of tensor names and the device that it sends them to (-ot PATTERN=DEVICE)."""

    pattern: re.Pattern[str]
    device: str


def overrides_of(keys: Keys) -> tuple[Override, ...]:
    """-ot, --cpu-moe and --n-cpu-moe in the order in which they count. Raises BadInput for what is no pattern."""
    found: list[Override] = []
    stated = keys.override_tensor
    for text in (stated,) if isinstance(stated, str) else stated or ():
        for part in re.split(r",(?=[^,]*=)", text):
            pattern, equals, device = part.rpartition("=")
            if not equals or not re.fullmatch(r"CPU|CUDA\d+|Vulkan\d+|ROCm\d+|Metal", device):
                raise BadInput("serve.extra.override-tensor", f"{part!r} is not PATTERN=DEVICE with CPU or CUDA0, CUDA1 ...")
            found.append(Override(_compiled(pattern), device))
    if keys.cpu_moe:
        found.append(Override(re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"), "CPU"))
    first = keys.n_cpu_moe or 0
    return (*found, *(Override(re.compile(rf"blk\.{layer}\.ffn_(up|down|gate|gate_up)_(ch|)exps"), "CPU") for layer in range(first)))


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise BadInput("serve.extra.override-tensor", f"{pattern!r} is no regular expression: {error}") from error
