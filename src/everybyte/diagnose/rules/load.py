"""Weights that do not fit, or that fit at rest but not for the moment in which they are read."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.basics.units import GiB
from everybyte.diagnose.evidence import Evidence
from everybyte.diagnose.suspicion import Suspicion

SERVERS = ("vllm", "sglang", "lmdeploy", "trtllm", "turbomind", "text-generation")


def suspect(e: Evidence) -> Iterator[Suspicion]:
    """Does the job at rest fit? Then it is the peak of loading."""
    m = e.message
    if m is None or e.phase != "load" or m.form.weight == "host":
        return
    capacity = m.capacity or e.held.capacity
    if e.held.static is not None and capacity:
        if e.held.static < 0.97 * capacity:
            yield Suspicion("load_peak", 0.6, f"the job at rest needs {e.held.static / GiB:,.1f} of {capacity / GiB:,.1f} GiB: only loading needs more")
        else:
            yield Suspicion("weights_too_large", 0.8, f"the job at rest needs {e.held.static / GiB:,.1f} GiB, the GPU has {capacity / GiB:,.1f}")
        return
    if "resume" in e.facts.words:
        yield Suspicion("load_peak", 0.4, "the run resumes: what is read and what is there are both held for a moment")
    if any(name in e.text.casefold() for name in SERVERS):
        yield Suspicion("weights_too_large", 0.4, "a server that loads weights holds nothing else yet")
    elif "zero3" in e.facts.words or "fsdp" in e.facts.words:
        yield Suspicion("load_peak", 0.45, "weights that will be sharded are first placed whole")
