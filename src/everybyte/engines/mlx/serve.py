"""Accounts for mlx-lm on a Mac: memory that the CPU and the GPU share.

What is known: weights as mlx.nn.quantize stores them (numbers of 2 to 8 bits, a 16-bit scale and bias for each group), a cache that grows by 256 tokens
(mlx_lm/models/cache.py), prompts in steps of 2,048 tokens, scores of heads that the fused kernel does not have. The GPU may use about three quarters of the
memory unless iogpu.wired_limit_mb says more. Not modelled: MLX's cache of freed buffers, and a checkpoint that is converted while it is loaded.
"""

from __future__ import annotations

from msgspec.structs import replace

from everybyte.basics.dtypes import BF16, DTYPES
from everybyte.basics.errors import Unsupported
from everybyte.basics.origin import default_of, inferred
from everybyte.basics.units import GiB, MiB, round_up
from everybyte.engines.mlx.extra import Keys
from everybyte.job import Job, Serve
from everybyte.job.extra import section
from everybyte.layers.network import Network
from everybyte.layers.recording.setup import Kernels, Packed, Setup
from everybyte.ledger.build import Line, plain
from everybyte.models.widths import head_sizes, widths_of
from everybyte.rules.accounting.account import Account, Device, Rank
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.serving.kv_pool_server import prompt_line
from everybyte.rules.serving.pages import layer_caches, prices
from everybyte.rules.serving.server_phases import Phases, ServerPhases
from everybyte.rules.serving.settings import known_of
from everybyte.rules.serving.tensor_parallel import Cut
from everybyte.rules.step.cache import Format
from everybyte.rules.step.persistent_state import weight_lines

NAME = "mlx-lm"
STEP = 256
"""Tokens by which a cache grows."""
PREFILL = 2048
"""Tokens of a prompt that are computed at once (generate_step prefill_step_size)."""
CONTEXT = 4096
SOURCE = "mlx_lm/models/cache.py KVCache, RotatingKVCache: steps of 256 tokens; a window keeps its last tokens"
WIRED = "Metal recommendedMaxWorkingSetSize: about 3/4 of the memory from 36 GB on, 2/3 below; iogpu.wired_limit_mb raises it"
METAL = "metal"
"""Compute capability of the Macs of the catalogue, whose capacity is the working set already."""
FUSED = (64, 80, 128)
"""Sizes of a head that the fused kernel has for more than eight queries, if keys and values have the same."""
SCORES = (
    "mlx backend/metal/scaled_dot_product_attention.cpp use_fallback: a prompt's heads are fused where keys and values have 64, 80 or 128 numbers; "
    "others make the scores of all heads, and the softmax takes their place"
)
CHECKPOINT = ("awq", "gptq")
"""Formats in which embedding and head stay plain."""


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of one process."""
    assert job.serve is not None
    serve, choices, known = job.serve, ResolvedSettings(), known_of(job)
    keys = section(serve.extra, Keys, "serve.extra")
    setup = _setup(serve, network, choices)
    context = choices.pick("serve.context", serve.context, min(network.max_positions or CONTEXT, CONTEXT), default_of(NAME))
    sequences = choices.pick("serve.sequences", serve.sequences, 1, default_of(NAME))
    kind = _kind(serve, setup, keys, choices)
    layers = layer_caches(network, Cut(), kind)
    found = prices(layers)
    tokens = round_up(context, STEP)
    size = sequences * sum(layer.copies * layer.token * (min(tokens, layer.window) if layer.window else tokens) for layer in layers)
    cache = Line("kv_cache/tokens", "kv_cache", size, plain("kv", kv=size), SOURCE)
    states = sequences * found.state
    rows = weight_lines(network, setup, Cut())
    held = (*rows, cache, *((Line("state/sequences", "state", states, plain("b·state", b=sequences, state=found.state), SOURCE),) if states else ()))
    figures = {"weights": known.get("weights", sum(line.bytes for line in rows)), "kv.bytes_per_token": found.token, "kv.bytes": size}
    if states:
        figures["state.bytes"] = states
    wired = keys.system_limit_mb or keys.wired_limit_mb
    limit = wired * MiB if wired else _working_set(device)
    if device.capacity:
        choices.assume(f"the GPU may use {limit / GiB:,.1f} GiB ({WIRED})")
    work = (_work(network, min(PREFILL, context) * sequences), *_scores(network, min(PREFILL, context), tokens, sequences))
    needed = sum(line.bytes for line in (*held, *work))
    if device.capacity and needed > limit:
        choices.warn(f"{needed / GiB:,.2f} GiB are needed, the GPU may use {limit / GiB:,.2f} GiB: raise iogpu.wired_limit_mb")
    phases: Phases = (("load", rows), ("prefill", (*held, *work)), ("decode", held))
    return Account((Rank(ServerPhases(phases)),), choices, figures=figures, capacity=limit if device.capacity else 0)


def _working_set(device: Device) -> int:
    """What Metal lets the GPU use of a machine that is given by its memory; Macs of the catalogue are given by that already."""
    whole = device.capacity
    if device.compute_capability == METAL:
        return whole
    return whole * 3 // 4 if whole >= 36 * GiB else whole * 2 // 3


def _scores(network: Network, queries: int, keys: int, sequences: int) -> tuple[Line, ...]:
    """The scores of one layer's attention over a step of the prompt, where the kernel is not fused: the largest kind counts."""
    apart = [sizes.heads for sizes in head_sizes(network) if sizes.key != sizes.value or sizes.key not in FUSED]
    if not apart:
        return ()
    size = 2 * sequences * max(apart) * queries * keys
    text = plain("2·b·a·q·s", b=sequences, a=max(apart), q=queries, s=keys)
    return (Line("activation/scores", "activation", size, text, SCORES),)


def _setup(serve: Serve, network: Network, choices: ResolvedSettings) -> Setup:
    """Weights as mlx stores them."""
    asked = serve.weights
    plain_kind = network.dtype if network.dtype.bits == 16 else BF16
    setup = Setup(weights=plain_kind, grad=False, trainable=(), kernels=Kernels(loss="logits"))
    word = choices.pick("serve.weights.format", asked.format if asked else None, plain_kind.name, inferred("the checkpoint's own type"))
    if word in ("bf16", "fp16", "fp32"):
        return replace(setup, weights=DTYPES[word])
    digits = word.removeprefix("int").removeprefix("q").partition("_")[0]
    bits = int(asked.bits) if asked is not None and asked.bits else int(digits) if digits.isdigit() else 4
    if word not in CHECKPOINT and not digits.isdigit():
        raise Unsupported("serve.weights.format", f"{word!r} is not supported for mlx; supported: bf16, fp16, int4, int8 and the like, awq, gptq")
    group = (asked.group_size if asked else None) or (128 if word in CHECKPOINT else 64)
    skip = ("lm_head", "embed_out", "*vision*", "*visual.*") if word in CHECKPOINT else ("*vision*", "*visual.*")
    if word not in CHECKPOINT:
        choices.assume("the embedding is counted plain; mlx_lm.convert quantises it as well")
    return replace(setup, packed=Packed("mlx", skip, group, bits=bits, experts=True))


def _kind(serve: Serve, setup: Setup, keys: Keys, choices: ResolvedSettings) -> Format:
    """--kv-bits, or 16 bits."""
    given = serve.kv_dtype.k if serve.kv_dtype else None
    bits = keys.kv_bits or {"int8": 8, "int4": 4, "q8": 8, "q4": 4}.get(given or "", 0)
    choices.note("serve.kv_dtype", f"int{bits}" if bits else setup.weights.name, default_of(NAME))
    return Format(setup.weights if setup.weights.bits <= 16 else BF16, bits, keys.kv_group_size or 64, 0)


def _work(network: Network, tokens: int) -> Line:
    wide = max((*widths_of(network).ffn, network.top_k * max(widths_of(network).expert_ffn, default=0)), default=0)
    return prompt_line(tokens, network.hidden, wide)
