"""What of a serving job the clock needs, as plain numbers; and the load that the job states."""

from __future__ import annotations

from typing import Any

from everybyte.basics.record import Record
from everybyte.job import Job
from everybyte.job.form import ServeLoad
from everybyte.layers.network import Network
from everybyte.rules.quantization.gguf.tensors import mean_bits

BITS = {
    "bf16": 16.0,
    "fp16": 16.0,
    "fp32": 32.0,
    "fp8": 8.0,
    "int8": 8.25,
    "nvfp4": 4.5,
    "mxfp4": 4.25,
    "int4": 4.25,
    "awq": 4.25,
    "gptq": 4.25,
    "nf4": 4.5,
    "exl2": 4.0,
}
"""Bits a weight with its scales, where the job gives none; GGUF's follow from its files' rules."""
PRODUCTS = {"fp8": "fp8", "nvfp4": "fp4"}
"""Formats that products run in; every other is unpacked to 16 bits."""
NARROW_CACHE = ("fp8", "fp8_e4m3", "fp8_e5m2", "int8", "q8_0")
GGUF_ENGINES = ("llama.cpp", "ollama")
DEFAULT_SEQUENCES = 1
DEFAULT_CONTEXT = 2048
DEFAULT_PROMPT, DEFAULT_OUTPUT = 1024, 256
"""A request where the job states no load; shorter where the context is."""


class Load(Record, frozen=True):
    """What is asked of the server: prompts of `prompt` tokens, `output` tokens each, `concurrency` at once."""

    prompt: int
    output: int
    concurrency: int
    is_saturated: bool = False
    """As many at once as the cache holds."""
    rate: float = 0.0
    """Requests a second of an open loop; 0 for a closed one of `concurrency`."""
    stated: bool = False


class ServeSetting(Record, frozen=True):
    """A serving job, read."""

    engine: str
    weights: str
    bits: float
    form: str
    cache_bytes: float
    gpus: int
    tp: int
    pp: int
    dp: int
    ep: int
    load: Load
    power: float
    """Rate against a card at its own limit of power."""

    @property
    def is_gguf(self) -> bool:
        """Whether ggml's kernels run."""
        return self.engine in GGUF_ENGINES


def serve_setting(job: Job, network: Network, tdp_w: float | None = None) -> ServeSetting:
    """The job's setting. A load is read from `extra`: isl, osl and concurrency; load: infinite; or llama-bench's test (pp512, tg128)."""
    serve = job.serve
    assert serve is not None
    extra, mesh = serve.extra or {}, serve.mesh
    engine = str(extra["engine"]) if extra.get("engine") in ENGINES_BY_EXTRA else serve.engine or "vllm"
    weights = (serve.weights and serve.weights.format) or "bf16"
    kv = (serve.kv_dtype and serve.kv_dtype.k) or "auto"
    gpus = (job.hardware.gpus if job.hardware else None) or 1
    return ServeSetting(
        engine=engine,
        weights=weights,
        bits=(serve.weights and serve.weights.bits) or _bits(weights, network),
        form=PRODUCTS.get(weights, "bf16"),
        cache_bytes=1.0 if kv in NARROW_CACHE else 2.0,
        gpus=gpus,
        tp=(mesh and mesh.tp) or 1,
        pp=(mesh and mesh.pp) or 1,
        dp=(mesh and mesh.dp) or 1,
        ep=(mesh and mesh.ep) or 1,
        load=_stated(serve.load, serve.context) if serve.load is not None else _load(extra, serve.sequences, serve.context),
        power=_power(extra, tdp_w),
    )


ENGINES_BY_EXTRA = ("gpt-fast",)
"""Programs that run as another engine's extra."""
POWER_EXPONENT = 0.72
"""Rate falls with the limit of power to this exponent: 0.87 at 330 of 400 W (gpt-fast's A100)."""


def _power(extra: dict[str, Any], tdp_w: float | None) -> float:
    limit = extra.get("power_limit_w")
    return min(1.0, (float(limit) / tdp_w) ** POWER_EXPONENT) if limit and tdp_w else 1.0


def _bits(weights: str, network: Network) -> float:
    if weights in BITS:
        return BITS[weights]
    return float(mean_bits(network, weights))


def _stated(load: ServeLoad, context: int | None) -> Load:
    """The load in the job's own form; an open loop is the closed one that keeps up with it (`rate`)."""
    most = max(1, (context or DEFAULT_CONTEXT) // 2)
    return Load(
        prompt=load.prompt or min(most, DEFAULT_PROMPT),
        output=load.output or min(most, DEFAULT_OUTPUT),
        concurrency=load.concurrency or DEFAULT_SEQUENCES,
        rate=0.0 if load.concurrency else load.rate or 0.0,
        stated=True,
    )


def _load(extra: dict[str, Any], sequences: int | None, context: int | None) -> Load:
    test = str(extra.get("test") or "")
    if test[:2] in ("tg", "pp") and test[2:].isdigit():
        tokens = int(test[2:])
        return Load(prompt=tokens if test.startswith("pp") else 1, output=tokens if test.startswith("tg") else 1, concurrency=1, stated=True)
    if extra.get("isl") and extra.get("osl"):
        saturated = extra.get("load") == "infinite"
        at_once = int(extra.get("concurrency") or extra.get("max_batch") or sequences or DEFAULT_SEQUENCES)
        return Load(int(extra["isl"]), int(extra["osl"]), at_once, is_saturated=saturated, stated=True)
    most = max(1, (context or DEFAULT_CONTEXT) // 2)
    return Load(prompt=min(most, DEFAULT_PROMPT), output=min(most, DEFAULT_OUTPUT), concurrency=1)
