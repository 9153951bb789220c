"""One model of each architecture in the catalogue: a reader with a calculator gets the bytes of every row."""

from __future__ import annotations

from typing import Any

import pytest
from arithmetic_of_rows import calculate

from everybyte.basics.errors import Unsupported
from everybyte.catalog.models import all_models, model_config
from everybyte.engines.registry import account
from everybyte.estimator import NO_DEVICE
from everybyte.job import read_job
from everybyte.models.registry import supported
from everybyte.models.source import network_of

TRAIN = {"micro_batch": 3, "seq_len": 77}
JOBS: dict[str, dict[str, Any]] = {
    "full": {"train": {"framework": "pytorch", "precision": "bf16-mixed", **TRAIN}},
    "adapter over packed weights": {
        "train": {
            "framework": "transformers",
            "precision": "bf16",
            "recompute": "full",
            "adapter": {"kind": "lora", "targets": "all-linear"},
            "quantization": {"format": "nf4"},
            "optimizer": {"name": "adafactor"},
            **TRAIN,
        }
    },
    "inference": {"serve": {"context": 1111, "sequences": 2}},
}


def one_of_each() -> list[str]:
    """The first model of the catalogue of each architecture."""
    found: dict[str, str] = {}
    for row in all_models():
        found.setdefault((model_config(row.name, "model").get("architectures") or [""])[0], row.name)
    return [name for architecture, name in found.items() if architecture in supported()]


@pytest.mark.parametrize("name", one_of_each())
def test_formulas_give_the_bytes(name: str) -> None:
    """Training, adapters over packed weights and inference, where the architecture has them."""
    rows = 0
    for job in JOBS.values():
        asked = read_job({"model": name, **job})
        try:
            ledger = account(asked, network_of(name), NO_DEVICE).ranks[0].bill.ledger()
        except Unsupported:
            continue
        for e in ledger.entries:
            rows += 1
            assert calculate(e.formula, e.symbols) == e.bytes, (e.id, e.formula, e.symbols, e.bytes)
    assert rows > 10
