"""Accounts for a server of Text Generation Inference.

What is known: the warm-up runs max_batch_prefill_tokens through the model, with cache blocks for them and until 3.0 with the log-probabilities of all of
them; then a share of what is free becomes cache blocks (server/text_generation_server/models/flash_causal_lm.py warmup, launcher/src/main.rs, by version in
catalog/data/releases/tgi.csv). CUDA graphs are captured after that, in the rest. Not modelled: the automatic choice of max_batch_prefill_tokens in 3.x by
the card's speed, and Medusa or n-gram speculation.
"""

from __future__ import annotations

from everybyte.basics.dtypes import BF16
from everybyte.basics.origin import default_of, inferred
from everybyte.basics.units import ceil_div
from everybyte.catalog.releases import Release
from everybyte.engines.tgi.extra import Keys
from everybyte.job import Job
from everybyte.job.extra import section
from everybyte.layers.network import Network
from everybyte.ledger.build import Line, plain
from everybyte.models.widths import widths_of
from everybyte.rules.accounting.account import Account, Device
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.serving.kv_pool_server import Server, account_of, prompt_line
from everybyte.rules.serving.settings import kv_format, mesh_of, release_of
from everybyte.rules.serving.tensor_parallel import Cut, refuse_odd
from everybyte.rules.serving.weights import setup_of

NAME = "TGI"
CACHES = ("fp8",)
DEFAULT_CONTEXT = 4096
PREFILL = 4096
"""max_batch_prefill_tokens where it does not follow from the longest prompt."""
SOURCE = "text-generation-inference flash_causal_lm.py warmup: blocks = free // block after one prefill of max_batch_prefill_tokens; globals.py BLOCK_SIZE"
LOGPROBS = "text-generation-inference flash_causal_lm.py generate_token: log_softmax of the logits of a prompt whose log-probabilities are asked for"
WARMUP = "text-generation-inference flash_causal_lm.py warmup: one forward pass; its tensors stay in torch's cache while free memory is read"


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of one replica."""
    assert job.serve is not None
    serve, choices = job.serve, ResolvedSettings()
    keys = section(serve.extra, Keys, "serve.extra")
    release = release_of(serve, "tgi", choices)
    tp = mesh_of(job).tp or keys.num_shard or 1
    refuse_odd(network, tp)
    setup = setup_of(serve, network, choices)
    length = serve.context or keys.max_total_tokens
    most = release.whole("max_total_tokens")
    longest = min(network.max_positions or DEFAULT_CONTEXT, most)
    context = choices.pick("serve.context", length, longest, inferred(f"the model's maximum, at most {most:,}"))
    above = release.whole("prefill_above")
    usual = context - 1 + above if above else PREFILL
    tokens = choices.pick("serve.batched_tokens", serve.batched_tokens or keys.max_batch_prefill_tokens, usual, default_of(NAME))
    fraction = choices.pick("serve.memory_fraction", serve.memory_fraction or keys.cuda_memory_fraction, 1.0, default_of(NAME))
    room, of_the_card = release.share("room"), release.has("room_of_the_card")
    prefixes = keys.prefix_caching is not False and release.has("caches_prefixes")
    page = choices.pick("serve.block_size", serve.block_size, 1 if prefixes else 16, default_of("TGI: flashinfer pages are tokens, paged attention has 16"))
    wide = ceil_div(max((*widths_of(network).ffn, network.top_k * max(widths_of(network).expert_ffn, default=0))), tp)
    cut = Cut(tp, tp, 1, tp, tp, tp)
    kind = kv_format(serve, setup.weights if setup.weights.bits <= 16 else BF16, CACHES, NAME, choices)
    work = (prompt_line(tokens, network.hidden, wide, WARMUP), *_logprobs(network, tokens, tp, release))
    server = Server(
        NAME,
        setup,
        cut,
        1,
        kind,
        context,
        serve.sequences or 1,
        page,
        fraction * room if of_the_card else fraction,
        SOURCE,
        work,
        of_total=True,
        of_free=1.0 if of_the_card else room,
        warm=tokens,
    )
    return account_of(job, network, device, server, choices)


def _logprobs(network: Network, tokens: int, tp: int, release: Release) -> tuple[Line, ...]:
    """16-bit logits of the whole warm-up batch and their log-probabilities. Several GPUs gather them from their parts, by column, so that log_softmax copies
    them whatever its result takes the place of. All of it is in torch's cache when free memory is read."""
    if not release.has("warms_up_logprobs"):
        return ()
    part = ceil_div(network.vocab, tp)
    lines = [_rows("activation/logits", tokens, network.vocab, "V")]
    if tp > 1:
        lines.append(_rows("activation/logits_part", tokens, part, "v"))
    if tp > 1 or release.has("copies_logprobs"):
        lines.append(_rows("activation/logprobs", tokens, network.vocab, "V"))
    return tuple(lines)


def _rows(name: str, tokens: int, wide: int, symbol: str) -> Line:
    return Line(name, "activation", 2 * tokens * wide, plain(f"2·n·{symbol}", n=tokens, **{symbol: wide}), LOGPROBS)
