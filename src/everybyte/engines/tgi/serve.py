"""Accounts for a server of Text Generation Inference.

What is known: the warm-up runs max_batch_prefill_tokens through the model, then everything free up to the memory fraction becomes cache blocks
(server/text_generation_server/models/flash_causal_lm.py warmup). CUDA graphs are captured after that, in the rest. Not modelled: the automatic choice of
max_batch_prefill_tokens in 3.x by the card's speed, and Medusa or n-gram speculation.
"""

from __future__ import annotations

from everybyte.basics.dtypes import BF16
from everybyte.basics.origin import default_of, inferred
from everybyte.basics.units import ceil_div
from everybyte.engines.tgi.extra import Keys
from everybyte.job import Job
from everybyte.job.extra import section
from everybyte.layers.network import Network
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
WIGGLE = 0.95
"""TGI_WIGGLE_ROOM: share of the fraction that blocks may take, from 2.3 on."""
SOURCE = "text-generation-inference flash_causal_lm.py warmup: blocks = free // block after one prefill of max_batch_prefill_tokens; globals.py BLOCK_SIZE"
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
    longest = min(network.max_positions or DEFAULT_CONTEXT, 16384)
    context = choices.pick("serve.context", length, longest, inferred("the model's maximum, at most 16k"))
    tokens = choices.pick("serve.batched_tokens", serve.batched_tokens or keys.max_batch_prefill_tokens, 4096, default_of(NAME))
    asked = serve.memory_fraction or keys.cuda_memory_fraction
    fraction = choices.pick("serve.memory_fraction", asked, 1.0, default_of(NAME)) * (WIGGLE if release.has("caches_prefixes") else 1.0)
    prefixes = keys.prefix_caching is not False and release.has("caches_prefixes")
    page = choices.pick("serve.block_size", serve.block_size, 1 if prefixes else 16, default_of("TGI: flashinfer pages are tokens, paged attention has 16"))
    wide = ceil_div(max((*widths_of(network).ffn, network.top_k * max(widths_of(network).expert_ffn, default=0))), tp)
    cut = Cut(tp, tp, 1, tp, tp, tp)
    kind = kv_format(serve, setup.weights if setup.weights.bits <= 16 else BF16, CACHES, NAME, choices)
    work = (prompt_line(tokens, network.hidden, wide, WARMUP),)
    server = Server(NAME, setup, cut, 1, kind, context, serve.sequences or 1, page, fraction, SOURCE, work, of_total=True)
    return account_of(job, network, device, server, choices)
