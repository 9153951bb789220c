"""Something that grows with the square of the sequence: a request many times what a GPU has."""

from __future__ import annotations

from collections.abc import Iterator

from everybyte.basics.units import GiB
from everybyte.diagnose.evidence import Evidence
from everybyte.diagnose.suspicion import Suspicion

ABSURD = 96 * GiB
"""A single tensor of this size is none that anybody wants, where the capacity is not known."""


def suspect(e: Evidence) -> Iterator[Suspicion]:
    """An absurd request, or a log that says that the quick attention kernel is not there."""
    m = e.message
    if m is None or m.form.engine not in ("torch", "comfyui", "vllm", "sglang"):
        return
    if m.requested is not None and (m.requested > 1.5 * m.capacity if m.capacity else m.requested > ABSURD):
        yield Suspicion("attention_scores", 0.75, f"one tensor of {m.requested / GiB:,.0f} GiB: something is built for every pair of tokens")
    if "eager_attention" in e.facts.words and e.phase in ("forward", "backward", "profile", None):
        yield Suspicion("attention_scores", 0.45, "attention runs eagerly, which writes scores for every pair of tokens")
    if "attention mask" in e.text:
        yield Suspicion("attention_scores", 0.7, "the attention mask is expanded to every pair of tokens")
