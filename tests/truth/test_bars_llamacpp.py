"""How near the answers for llama.cpp, ik_llama.cpp and ollama come to what their logs print."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest

from everybyte.estimator import accounted
from everybyte.job import read_job
from everybyte.measure.accuracy import relative_error
from everybyte.measure.truth import load_records
from everybyte.rules.accounting.account import Account

ENGINES = ("llama.cpp", "ollama")
CACHES = ("kv.bytes", "kv.swa_bytes", "state.bytes")
OF_ALL = (None, "any", "max", "sum")
"""Ranks of a measurement that stand for the whole server; `CPU` is that of a server without a GPU."""
WRONG_LABEL = "The weight label is not the type of the expert tensors"
"""What the truth says of records whose compute buffer cannot come from the format that the job names."""
PRINTED = 5300
"""Bytes: half of the printed 0.01 MiB."""


@lru_cache(maxsize=1)
def answered() -> tuple[tuple[dict[str, Any], Account], ...]:
    """Every record of these engines with its account."""
    asked = (r for r in load_records() if (r["job"].get("serve") or {}).get("engine") in ENGINES and r["group"] != "gguf-size")
    return tuple((dict(record), accounted(read_job(record["job"]))[2]) for record in asked)


def pairs(figures: tuple[str, ...], without: str = "") -> Iterator[tuple[str, float | None, float, float]]:
    """(record, predicted, measured, half the resolution)."""
    for record, account in answered():
        if without and without in record.get("note", ""):
            continue
        alone = account.ranks[0].on_host
        for measured in record["measured"]:
            if measured["figure"] in figures and (measured["rank"] in OF_ALL or (measured["rank"] == "CPU" and alone)):
                yield record["id"], account.figures.get(measured["figure"]), measured["value"], (measured.get("resolution") or 0) / 2


def test_caches() -> None:
    """Caches and recurrent states: |error| ≤ 0.05 % for at least 98 %."""
    errors = [None if ours is None else relative_error(ours, theirs, slack) for _, ours, theirs, slack in pairs(CACHES)]
    good = [error for error in errors if error is not None and abs(error) <= 0.0005]
    assert len(errors) > 100
    assert len(good) >= 0.98 * len(errors)


def test_compute_buffers() -> None:
    """Compute buffers: equal to the printed 0.01 MiB for at least 60 %, within 3 % for at least 75 %, where the job names the experts' format rightly."""
    found = [(ours, theirs, slack) for _, ours, theirs, slack in pairs(("compute_buffer",), WRONG_LABEL)]
    known = [(ours, theirs, slack) for ours, theirs, slack in found if ours is not None]
    assert len(known) >= 0.98 * len(found)
    assert sum(abs(ours - theirs) <= max(slack, PRINTED) for ours, theirs, slack in known) >= 0.60 * len(found)
    assert sum(abs(relative_error(ours, theirs, slack)) <= 0.03 for ours, theirs, slack in known) >= 0.75 * len(found)


@pytest.mark.parametrize("figure", ["weights", "file_bytes"])
def test_weights(figure: str) -> None:
    """Weights and files within 3 %."""
    for name, ours, theirs, slack in pairs((figure,)):
        assert ours is not None, name
        assert abs(relative_error(ours, theirs, slack)) <= 0.03, name
