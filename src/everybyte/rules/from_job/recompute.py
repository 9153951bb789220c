"""Policies of recomputing: from the job's word to which blocks drop their activations, and by which of torch's implementations."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from everybyte.basics.errors import Unsupported
from everybyte.basics.origin import default_of
from everybyte.job import Train
from everybyte.job.form import Recompute as Given
from everybyte.layers.recording.replay import Recompute
from everybyte.rules.accounting.resolved_settings import ResolvedSettings
from everybyte.rules.step.recipe import RecomputePlan


class Usual(NamedTuple):
    """What a framework does where the job is silent."""

    framework: str
    policy: str
    reentrant: bool
    in_flight: int
    """Kept inputs on their way to host memory, where activations are offloaded."""
    offloads: bool = False
    """Recomputed blocks keep their inputs in host memory."""


class Asked(NamedTuple):
    """What a policy has to go by."""

    given: Given
    usual: Usual
    offloads: bool
    """Activations wait in host memory."""
    choices: ResolvedSettings


def keep_all(asked: Asked) -> RecomputePlan:
    """No block is recomputed."""
    if asked.offloads:
        raise Unsupported(
            "train.offload.activations", "without recomputing every saved tensor would move; this is not supported yet: set train.recompute to full"
        )
    return RecomputePlan()


def whole_blocks(asked: Asked) -> RecomputePlan:
    """Each block, or each k-th, keeps its input alone."""
    given, usual = asked.given, asked.usual
    reentrant = asked.choices.pick("train.recompute.reentrant", given.reentrant, usual.reentrant, default_of(usual.framework))
    mode: Recompute = "reentrant" if reentrant else "non-reentrant"
    return RecomputePlan(mode, given.every or 1, usual.in_flight if asked.offloads else None)


POLICIES: dict[str, Callable[[Asked], RecomputePlan]] = {"none": keep_all, "full": whole_blocks}
"""train.recompute.policy -> what it does to a network of blocks. Engines whose own code recomputes parts of a block (Megatron-LM, torchtitan) read the
word themselves."""


def recompute_of(train: Train, usual: Usual, choices: ResolvedSettings) -> RecomputePlan:
    """The plan of a job. Raises Unsupported for a policy that the framework does not have here."""
    given = train.recompute or Given()
    word = choices.pick("train.recompute.policy", given.policy, usual.policy, default_of(usual.framework))
    asked = bool(train.offload and train.offload.activations not in (None, "none"))
    offloads = asked or bool(given.offload)
    if usual.offloads and word == "full" and not asked:
        offloads = bool(choices.pick("train.recompute.offload", given.offload, usual.offloads, default_of(usual.framework)))
    if word not in POLICIES:
        raise Unsupported("train.recompute.policy", f"{word!r} is not supported by {usual.framework} yet; supported: {' and '.join(POLICIES)}")
    return POLICIES[word](Asked(given, usual, offloads, choices))
