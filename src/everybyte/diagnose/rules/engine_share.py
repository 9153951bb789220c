"""An engine's share of the GPU: what it leaves outside, and what its parts take of it."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.basics.units import GiB
from everybyte.diagnose.evidence import Evidence
from everybyte.diagnose.suspicion import Suspicion

HIGH, LOW = 0.94, 0.5
PART = {"weights": "weights_too_large", "activation_peak": "profiling_run"}


def suspect(e: Evidence) -> Iterator[Suspicion]:
    """A share above 0.94 leaves no room for graphs and communicators, one below 0.5 none for the cache; a negative pool is the fault of its largest part."""
    m = e.message
    if m is None:
        return
    share = e.facts.numbers.get("memory_fraction")
    if share is not None and m.form.weight in ("fault", "driver"):
        if share >= HIGH and e.phase in ("capture", None, "decode", "prefill"):
            yield Suspicion("memory_fraction", 0.5, f"a share of {share:g} leaves no room for what lies outside it")
        if share <= LOW and m.form.engine in ("vllm", "sglang"):
            yield Suspicion("memory_fraction", 0.5, f"a share of {share:g} is a cap on weights, peak and cache together")
    if e.facts.words & {"colocated"}:
        yield Suspicion("memory_fraction", 0.4, "a server with a share of its own runs on the GPU that trains")
    if m.form.id in ("vllm.no_blocks", "vllm.negative_cache") and e.facts.sizes:
        parts = {name: nbytes for name, nbytes in e.facts.sizes.items() if name in PART}
        if parts:
            name = max(parts, key=lambda part: parts[part])
            yield Suspicion(PART[name], 0.45, f"the largest part of the share: {name.replace('_', ' ')}, {parts[name] / GiB:,.2f} GiB")
