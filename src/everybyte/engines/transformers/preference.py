"""Who runs preference and reinforcement learning for the frameworks on transformers."""

from __future__ import annotations

from msgspec.structs import replace

from everybyte.catalog.releases import Release, stated
from everybyte.job import Train
from everybyte.job.framework import SEVERAL
from everybyte.rules.from_job.preference import Preference, Trainer, preference_of

TRAINERS = {"axolotl": Trainer("trl", "rl"), "llama-factory": Trainer("LLaMA-Factory", "stage", own_log_probabilities=True, in_fp32=True)}
"""Framework -> who runs preference and reinforcement learning, where it is not trl by its own names."""
SWIFT = Trainer("ms-swift", trl=Release("trl", (0, 24)), own_log_probabilities=True, beta=0.04, vllm_share=0.9)
"""ms-swift's own trainers (swift/rlhf_trainers)."""


def trainer(train: Train) -> Trainer:
    """Who runs preference and reinforcement learning."""
    if train.framework == SEVERAL or SEVERAL in stated(train.version):
        return replace(SWIFT, key=TRAINERS.get(train.framework or "", SWIFT).key)
    return TRAINERS.get(train.framework or "", Trainer("trl"))


def asked_of(train: Train) -> Preference | None:
    """The algorithm of a job; None for supervised training. Raises Unsupported for one that is not worked out."""
    return preference_of(train, trainer(train))
