"""Functions that build a model, by framework: `llama3_1.lora_llama3_1_8b` of torchtune, `llama3 8B` of torchtitan -> a name of the catalogue."""

from __future__ import annotations

import csv
from functools import cache
from os.path import dirname, join


def model_of(framework: str, builder: str) -> str | None:
    """The model that a builder makes; None if it is not in `builders.csv`."""
    return _table().get((framework, builder.casefold()))


def models_of(framework: str) -> dict[str, str]:
    """Builder -> model of a framework."""
    return {builder: model for (name, builder), model in _table().items() if name == framework}


@cache
def _table() -> dict[tuple[str, str], str]:
    with open(join(dirname(__file__), "builders.csv"), encoding="utf-8", newline="") as lines:
        return {(framework, builder): model for framework, builder, model in list(csv.reader(lines))[1:]}
