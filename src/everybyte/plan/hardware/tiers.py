"""What a machine can train and serve: for each method the largest of a row of models that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from everybyte.basics.errors import BadInput
from everybyte.catalog.names import read_table
from everybyte.job import read_job
from everybyte.ledger.answer import Answer
from everybyte.plan.answer import answered
from everybyte.plan.hardware.machine import Machine, has_room, on_machine
from everybyte.plan.start.start import started

CONTEXT = 8192
"""Tokens of a conversation that a server of a tier has room for."""


class Method(NamedTuple):
    """A way to use a model, as the sections of a job; what they leave open is filled in as for flags."""

    name: str
    sections: dict[str, Any]


METHODS = (
    Method("full fine-tuning", {"train": {}}),
    Method("LoRA, 16-bit base", {"train": {"adapter": {"kind": "lora", "rank": 16}}}),
    Method("QLoRA, 4-bit base", {"train": {"adapter": {"kind": "lora", "rank": 16}, "quantization": {"format": "nf4"}}}),
    Method(f"serving in 16 bits (vLLM), {CONTEXT:,} tokens", {"serve": {"engine": "vllm", "context": CONTEXT}}),
    Method(f"serving in 4 bits (llama.cpp), {CONTEXT:,} tokens", {"serve": {"engine": "llama.cpp", "context": CONTEXT, "weights": {"format": "q4_k_m"}}}),
)


class Tier(NamedTuple):
    """The largest model of the row that a method has room for, and its answer; None where not even the smallest fits."""

    method: str
    model: str | None
    answer: Answer | None


def tiers(machine: Machine, tell: Callable[[str], None] = lambda name: None) -> Iterator[Tier]:
    """One tier for each method, in their order. `tell` hears of each that is tried."""
    for method in METHODS:
        tell(method.name)
        found = ((model, answer) for model in models() if (answer := _answer(model, method, machine)) is not None)
        yield Tier(method.name, *next(found, (None, None)))


def models() -> list[str]:
    """The models that are tried, the largest first."""
    return [row[0] for row in read_table("tier_models.csv")[1:]]


def _answer(model: str, method: Method, machine: Machine) -> Answer | None:
    """The answer for a model on the machine, if it fits."""
    try:
        job, taken = started(on_machine(read_job({"model": model, **method.sections}), machine))
        answer = answered(job, taken, advise=False)
    except BadInput:
        return None
    return answer if has_room(answer, machine) else None
