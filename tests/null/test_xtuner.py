"""xtuner's command line: what it does where a job is silent, and what it does not know."""

from __future__ import annotations

from typing import Any

import pytest

from everybyte import estimate
from everybyte.basics.errors import BadInput, Unsupported
from everybyte.ledger.answer import Answer


def run(**train: Any) -> Answer:
    """A run of Qwen3-8B on eight GPUs."""
    extra = {"framework": "xtuner", **train.pop("extra", {})}
    usual = {"framework": "pytorch", "micro_batch": 1, "seq_len": 4096, "extra": extra, "mesh": {"dp_shard": 8}, "sharding": "fsdp2"}
    return estimate({"model": "Qwen/Qwen3-8B", "hardware": {"gpu": "h100", "gpus": 8}, "train": {**usual, **train}})


def test_defaults_are_those_of_the_command_line() -> None:
    """A chunked loss without whole logits, AdamW in a Python loop, everything recomputed."""
    usual = run()
    assert usual.figures["peak.allocated"] < run(loss="standard").figures["peak.allocated"]
    foreach = run(optimizer={"name": "adamw", "impl": "foreach"})
    assert usual.figures["peak.allocated"] < foreach.figures["peak.allocated"]
    assert next(setting.value for setting in usual.settings if setting.key == "train.recompute.policy") == "full"


@pytest.mark.parametrize(("train", "error"), [({"extra": {"colour": 1}}, BadInput), ({"loss": "chunked"}, Unsupported)])
def test_unknown_settings_are_refused(train: dict[str, Any], error: type[Exception]) -> None:
    """Each with its key."""
    with pytest.raises(error):
        run(**train)
