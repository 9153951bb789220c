"""Which activations a framework can recompute, from none to all."""

from __future__ import annotations

from everybyte.plan.layouts.families import Family
from everybyte.plan.layouts.layout import NOTHING, Policy
from everybyte.plan.time.shape import NetworkShape

FULL = Policy("full")
PARTS = 4
"""Block counts are tried in quarters of a chunk's layers."""


def policies(family: Family, shape: NetworkShape, layers: int) -> list[Policy]:
    """The policies of a family for chunks of at most `layers` layers, the one that keeps most first."""
    found: list[Policy] = []
    for word in family.recompute:
        if word == "modules":
            found += _modules(shape)
        elif word == "block":
            found += [Policy("full", layers=count) for count in sorted({layers * part // PARTS for part in range(1, PARTS)} - {0})]
        else:
            found.append(NOTHING if word == "none" else Policy(word))
    return found


def _modules(shape: NetworkShape) -> list[Policy]:
    """Megatron's selective recomputation: cheap parts of a layer (transformer_config.py recompute_modules)."""
    if shape.expert_parameters:
        return [Policy("selective", ("layernorm", "moe_act")), Policy("selective", ("moe",))]
    return [Policy("selective", ("core_attn",)), Policy("selective", ("layernorm", "mlp"))]


def is_most_frugal(policy: Policy) -> bool:
    """Whether nothing more can be recomputed."""
    return policy == FULL
