"""What ollama sets before it starts its runner, which is llama.cpp (envconfig/config.go, server/sched.go, llm/server.go)."""

from __future__ import annotations

from msgspec.structs import replace

from everybyte.basics.origin import inferred
from everybyte.job import Job
from everybyte.layers.network import Network
from everybyte.rules.accounting.account import Device
from everybyte.rules.accounting.resolved_settings import ResolvedSettings

GiB = 1 << 30
CONTEXTS = ((47 * GiB, 262144), (23 * GiB, 32768), (0, 4096))
"""Context by the memory of all GPUs (routes.go: from 0.15 on 256k tokens from 47 GiB on, 32k from 23 GiB on, else 4k)."""
BATCH = 512
"""num_batch (api/types.go DefaultOptions)."""


def as_llamacpp(job: Job, network: Network, device: Device, choices: ResolvedSettings) -> Job:
    """The job that ollama's runner gets."""
    serve = job.serve
    assert serve is not None
    gpus = (job.hardware.gpus if job.hardware else None) or 1
    context = serve.context
    if context is None:
        context = next(tokens for least, tokens in CONTEXTS if device.capacity * gpus >= least)
        context = min(context, network.max_positions or context)
        choices.note("serve.context", context, inferred("ollama's default by the memory of the GPUs"))
    slots = choices.pick("serve.parallel_slots", serve.parallel_slots or serve.sequences, 1, "default of ollama (OLLAMA_NUM_PARALLEL)")
    batch = choices.pick("serve.batched_tokens", serve.batched_tokens or serve.ubatch, BATCH, "default of ollama (num_batch)")
    return replace(
        job,
        serve=replace(
            serve,
            context=context,
            parallel_slots=slots,
            batched_tokens=batch,
            ubatch=serve.ubatch or batch,
            unified_kv=serve.unified_kv if serve.unified_kv is not None else False,
        ),
    )
