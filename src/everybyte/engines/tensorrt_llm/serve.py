"""Accounts for a server of TensorRT-LLM, with a built engine or with its PyTorch backend.

What is known: sizes of the weights, the cache's blocks and their share of free memory (KvCacheConfig), the limits of a batch. What is not modelled:
TensorRT's own reuse of activation memory, which it works out at build time; the row of activations is the sum of the tensors that two published builds
imply, with a wide range. Workspaces of plugins and runtime buffers of speculative decoding are left out.
"""

from __future__ import annotations

from everybyte.basics.dtypes import BF16
from everybyte.basics.origin import default_of, inferred
from everybyte.engines.tensorrt_llm.extra import Keys
from everybyte.engines.tensorrt_llm.work import activation_line, decoder_line
from everybyte.job import Job
from everybyte.job.extra import section
from everybyte.layers.network import Network
from everybyte.ledger.build import Line
from everybyte.rules.accounting.account import Account, Device
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.serving.kv_pool_server import Server, account_of
from everybyte.rules.serving.prefill import fused_lines
from everybyte.rules.serving.settings import kv_format, mesh_of, release_of
from everybyte.rules.serving.tensor_parallel import Cut, refuse_odd
from everybyte.rules.serving.weights import setup_of

NAME = "TensorRT-LLM"
CACHES = ("bf16", "fp16", "fp8", "int8", "nvfp4")
DEFAULT_CONTEXT = 4096
TORCH = "TensorRT-LLM _torch/modules: the PyTorch backend runs max_num_tokens once before the cache is made (pyexecutor/_util.py KvCacheCreator)"
SOURCE = "TensorRT-LLM KvCacheConfig.free_gpu_memory_fraction (0.9): of what is free when engine and contexts are loaded; docs/source/reference/memory.md"


def account(job: Job, network: Network, device: Device) -> Account:
    """The account of one replica."""
    assert job.serve is not None
    serve, choices = job.serve, ResolvedSettings()
    keys = section(serve.extra, Keys, "serve.extra")
    release = release_of(serve, "tensorrt-llm", choices)
    mesh = mesh_of(job)
    tp, pp, ep = mesh.tp or 1, mesh.pp or 1, mesh.ep or 1
    by_group = keys.enable_attention_dp
    heads = 1 if by_group else tp
    refuse_odd(network, heads)
    setup = setup_of(serve, network, choices)
    context = choices.pick("serve.context", serve.context, network.max_positions or DEFAULT_CONTEXT, inferred("the model's maximum"))
    tokens = choices.pick("serve.batched_tokens", serve.batched_tokens, 8192, default_of("TensorRT-LLM, max_num_tokens"))
    running = choices.pick("serve.sequences", serve.sequences, release.whole("max_batch_size"), default_of("TensorRT-LLM, max_batch_size"))
    share = keys.free_gpu_memory_fraction or keys.kv_cache_free_gpu_mem_fraction
    fraction = choices.pick("serve.memory_fraction", serve.memory_fraction or share, 0.9, default_of(NAME))
    page = choices.pick("serve.block_size", serve.block_size or keys.tokens_per_block, release.whole("tokens_per_block"), default_of(NAME))
    cut = Cut(tp, heads, ep, max(tp // ep, 1), heads, heads)
    if not release.has("by_torch") or keys.backend == "tensorrt":
        choices.assume("activations: TensorRT plans their memory when an engine is built; the row is what two published builds imply")
        work: tuple[Line, ...] = (activation_line(network, cut, tokens, running, gathers=keys.gather_context_logits),)
        held: tuple[Line, ...] = (decoder_line(network, running),)
    else:
        work, held = fused_lines(network, cut, tokens, running, TORCH), ()
    server = Server(
        NAME,
        setup,
        cut,
        pp,
        kv_format(serve, setup.weights if setup.weights.bits <= 16 else BF16, CACHES, NAME, choices),
        context,
        running,
        page,
        fraction,
        SOURCE,
        work,
        held,
        most=keys.max_tokens,
    )
    return account_of(job, network, device, server, choices)
