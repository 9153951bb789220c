"""What ollama sets before it starts its runner, which is llama.cpp (envconfig/config.go, server/sched.go, llm/server.go)."""

from __future__ import annotations

from msgspec.structs import replace

from everybyte.basics.origin import inferred
from everybyte.basics.units import GiB
from everybyte.catalog.releases import Release, number_of, release_in
from everybyte.job import Job, Serve
from everybyte.job.pattern import model_of
from everybyte.layers.network import Network
from everybyte.models.source import model_type_of
from everybyte.rules.accounting.account import Device
from everybyte.rules.accounting.resolved_settings import ResolvedSettings

CONTEXTS = ((47 * GiB, 262144), (23 * GiB, 32768), (0, 4096))
"""Context by the memory of all GPUs (server/routes.go, from 0.15.5 on)."""
BATCH = 512
"""num_batch (api/types.go DefaultOptions)."""
LINE = "ollama"


def release_of(serve: Serve) -> Release:
    """The release that a job names, the newest that was read where it names none."""
    text = serve.version or ""
    return Release(LINE, number_of(text)) if text[:1].isdigit() or text[:2] in ("v0", "v1") else release_in(text, LINE)


def as_llamacpp(job: Job, network: Network, device: Device, choices: ResolvedSettings) -> Job:
    """The job that ollama's runner gets: a build of llama.cpp, and what ollama says where the job is silent."""
    serve = job.serve
    assert serve is not None
    release = release_of(serve)
    context = serve.context or _context(job, network, device, release, choices)
    slots = choices.pick("serve.parallel_slots", serve.parallel_slots or serve.sequences, release.whole("slots"), "default of ollama (OLLAMA_NUM_PARALLEL)")
    batch = choices.pick("serve.batched_tokens", serve.batched_tokens or serve.ubatch, BATCH, "default of ollama (num_batch)")
    attention = choices.pick("serve.attention", serve.attention, _attention(job, release), "default of ollama (OLLAMA_FLASH_ATTENTION)")
    build = release.value("llama_cpp")
    choices.assume(f"ollama {release.text}: rules of llama.cpp b{build}" + ("" if serve.version else "; serve.version chooses another"))
    return replace(
        job,
        serve=replace(
            serve,
            version=f"b{build}",
            context=context,
            attention=attention,
            parallel_slots=slots,
            batched_tokens=batch,
            ubatch=serve.ubatch or batch,
            unified_kv=serve.unified_kv if serve.unified_kv is not None else False,
        ),
    )


def _context(job: Job, network: Network, device: Device, release: Release, choices: ResolvedSettings) -> int:
    if release.has("context_by_memory"):
        gpus = (job.hardware.gpus if job.hardware else None) or 1
        context = next(tokens for least, tokens in CONTEXTS if device.capacity * gpus >= least)
        origin = inferred("ollama's default by the memory of the GPUs")
    else:
        context, origin = release.whole("context"), "default of ollama (OLLAMA_CONTEXT_LENGTH)"
    context = min(context, network.max_positions or context)
    choices.note("serve.context", context, origin)
    return context


def _attention(job: Job, release: Release) -> str:
    """Flash attention for the models of a list, for all since llama.cpp decides."""
    models = release.find("flash") or ""
    name = model_type_of(model_of(job)).replace("_", "").removesuffix("text")
    return "flash" if models == "all" or name in models.split() else "eager"
