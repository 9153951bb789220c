"""The DeepSpeed configurations that frameworks ship, where they differ from DeepSpeed's own defaults: as data."""

from __future__ import annotations

from functools import cache

from everybyte.catalog.names import read_table

Value = bool | int | str


@cache
def zero_preset(name: str, stage: int) -> dict[str, Value]:
    """Settings (as `rules.sharding.zero.settings` names them) of a framework's configuration for a ZeRO stage; empty where it ships none."""
    rows = read_table("zero_presets.csv")[1:]
    return {key: _value(value) for framework, of, key, value, _ in rows if framework == name and of == str(stage)}


def _value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdigit() else text
