"""The pattern of a hybrid model where the training framework's own setting says it."""

from __future__ import annotations

from typing import Any

from everybyte.job.form import InlineModel, Job

NAMES = ("hybrid-layer-pattern", "hybrid_layer_pattern", "hybrid-override-pattern", "hybrid_override_pattern")
"""Megatron-LM's argument, and its name before it also described blocks of multi-token prediction."""


def model_of(job: Job) -> str | InlineModel | dict[str, Any]:
    """The job's model; a hybrid shape without a pattern gets the one in train.extra."""
    model, extra = job.model, (job.train.extra if job.train is not None else None) or {}
    shape = model.shape if isinstance(model, InlineModel) else None
    if not isinstance(shape, dict) or shape.get("family") != "hybrid" or shape.get("pattern"):
        return model
    pattern = next((extra[name] for name in NAMES if name in extra), None)
    return {"shape": {**shape, "pattern": pattern}} if isinstance(pattern, str) else model
