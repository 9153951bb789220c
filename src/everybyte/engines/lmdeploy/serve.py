"""Accounts for a server of LMDeploy.

What is known: cache_max_entry_count of the memory that is free once weights are loaded, in blocks of 64 tokens, keys and values of 16, 8 or 4 bits with a
scale and a zero point for each head and token (messages.py, docs/en/quantization/kv_quant.md; pytorch/engine/executor/base.py for what the PyTorch engine
keeps for a batch first). Not modelled: TurboMind's buffers, which are taken from what the share leaves, and its weights' own packing.
"""

from __future__ import annotations

from everybyte.basics.dtypes import BF16
from everybyte.basics.errors import BadInput
from everybyte.basics.origin import default_of, inferred
from everybyte.basics.record import Record
from everybyte.basics.units import ceil_div
from everybyte.catalog.generations import by_word
from everybyte.catalog.releases import Release
from everybyte.engines.lmdeploy.extra import Keys
from everybyte.job import Job
from everybyte.job.extra import section
from everybyte.layers.network import Network, declare
from everybyte.layers.recording.size import elements
from everybyte.layers.recording.tape import Cache
from everybyte.ledger.build import Line, plain
from everybyte.models.count import DECLARE, parts
from everybyte.rules.accounting.account import Account, Device
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.serving.kv_pool_server import Server, account_of
from everybyte.rules.serving.settings import mesh_of, release_of
from everybyte.rules.serving.tensor_parallel import Cut, refuse_odd
from everybyte.rules.serving.weights import setup_of
from everybyte.rules.step.cache import Format

NAME = "LMDeploy"
DEFAULT_CONTEXT = 8192
BATCH = 128
"""max_batch_size on cards whose name the engine does not know."""
PREFILL = 8192
"""max_prefill_token_num of TurboMind."""
BITS = {"auto": 0, "bf16": 0, "fp16": 0, "int8": 8, "int4": 4}
SOURCE = "lmdeploy messages.py cache_max_entry_count: share of free memory (since 0.2.2; of all memory before), blocks of cache_block_seq_len tokens"
RUNTIME = "lmdeploy pytorch/engine/executor/base.py _get_runtime_size: kept free for logits; 0.9: 7 bytes of each, from 0.10: 2, and two more rows a sequence"


class Scaled(Record, frozen=True):
    """Prices a quantised cache: numbers of `bits`, and a scale and a zero point in 16 bits for each head and token."""

    bits: int
    width: int
    """Numbers of a head."""

    def __call__(self, cache: Cache, kind: Format) -> int | None:
        """Bytes of one token of one cache; None where it is not quantised."""
        numbers = elements(cache.dims)[0]
        if not self.bits or cache.kind != "kv":
            return None
        return ceil_div(numbers * self.bits, 8) + 4 * max(numbers // self.width, 1)


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of one replica."""
    assert job.serve is not None
    serve, choices = job.serve, ResolvedSettings()
    keys = section(serve.extra, Keys, "serve.extra")
    release = release_of(serve, "lmdeploy", choices)
    tp = mesh_of(job).tp or 1
    refuse_odd(network, tp)
    setup = setup_of(serve, network, choices)
    context = choices.pick("serve.context", serve.context or keys.session_len, network.max_positions or DEFAULT_CONTEXT, inferred("the model's maximum"))
    running = choices.pick("serve.sequences", serve.sequences or keys.max_batch_size, _batch(device, release), default_of(NAME))
    share = keys.cache_max_entry_count
    fraction = choices.pick("serve.memory_fraction", serve.memory_fraction or share, release.share("cache_share"), default_of(NAME))
    page = choices.pick("serve.block_size", serve.block_size or keys.cache_block_seq_len, 64, default_of(NAME))
    is_pytorch = keys.backend == "pytorch"
    tokens = serve.batched_tokens or keys.max_prefill_token_num
    tokens = choices.pick("serve.batched_tokens", tokens, release.whole("prefill_pytorch") if is_pytorch else PREFILL, default_of(NAME))
    word = choices.pick("serve.kv_dtype", serve.kv_dtype.k if serve.kv_dtype else None, "auto", default_of(NAME))
    if word not in BITS:
        raise BadInput("serve.kv_dtype", f"{word!r} is no cache format of LMDeploy; it has {', '.join(BITS)} (quant_policy 0, 8, 4)")
    work: tuple[Line, ...] = ()
    if is_pytorch:
        work = (_logits(network.vocab, tokens, running, release),)
    else:
        choices.assume("TurboMind's buffers come out of what cache_max_entry_count leaves; they are not in the rows")
    kind = Format(setup.weights if setup.weights.bits <= 16 else BF16)
    server = Server(
        NAME,
        setup,
        Cut(tp, tp, 1, tp, tp, tp),
        1,
        kind,
        context,
        running,
        page,
        fraction,
        SOURCE,
        work,
        of_total=release.has("share_of_total"),
        priced=Scaled(BITS[word], _head_width(network)),
    )
    return account_of(job, network, device, server, choices)


def _logits(vocab: int, tokens: int, running: int, release: Release) -> Line:
    each = release.whole("logit_bytes")
    if not release.has("counts_sampled_rows"):
        return Line("activation/logits", "activation", each * tokens * vocab, plain(f"{each}·n·V", n=tokens, V=vocab), RUNTIME, "formula")
    text = plain(f"{each}·(n + 2·R)·V", n=tokens, R=running, V=vocab)
    return Line("activation/logits", "activation", each * (tokens + 2 * running) * vocab, text, RUNTIME, "formula")


def _batch(device: Device, release: Release) -> int:
    """max_batch_size by card (lmdeploy utils.py get_max_batch_size)."""
    return int(by_word(release, device.name, "max_batch_size") or BATCH)


def _head_width(network: Network) -> int:
    """Numbers of one head, from the first layer that has any."""
    for part in parts(network):
        letters = dict(declare(part.layer, DECLARE, part.dims).letters)
        if not part.tower and letters.get("A") and letters.get("a"):
            return letters["A"] // letters["a"]
    return network.hidden
