"""Short ways to write a part of a job: `optimizer: adamw` stands for `optimizer: {name: adamw}`. One table serves reading and writing."""

from __future__ import annotations

from typing import Any

HEAD_KEY: dict[str, dict[str, str]] = {
    "train": {
        "optimizer": "name",
        "adapter": "kind",
        "quantization": "format",
        "pipeline": "schedule",
        "recompute": "policy",
        "loss": "kind",
    },
    "serve": {"weights": "format", "draft": "method"},
}
"""Parts of `train` and `serve` that one word can stand for, and the key that the word is the value of."""

NONE_MEANS_ABSENT = {"train": ("adapter", "quantization", "offload"), "serve": ("draft",)}
"""Parts where the word `none` says the same as leaving the key out."""

LISTS = {"train": ("freeze", "kernels")}
"""Lists that a single word can stand for."""


def expand(raw: dict[str, Any]) -> dict[str, Any]:
    """The job with its shorthand written out. `raw` is not changed."""
    return {key: _expand_section(key, value) if key in HEAD_KEY and isinstance(value, dict) else value for key, value in raw.items()}


def _expand_section(section: str, keys: dict[str, Any]) -> dict[str, Any]:
    out = {}
    for key, value in keys.items():
        if not isinstance(value, str):
            out[key] = value
        elif value == "none" and key in NONE_MEANS_ABSENT[section]:
            continue
        elif key in HEAD_KEY[section]:
            out[key] = {HEAD_KEY[section][key]: value}
        elif key == "kv_dtype":
            out[key] = {"k": value, "v": value}
        elif key in LISTS.get(section, ()):
            out[key] = [value]
        else:
            out[key] = value
    return out


def shorten(written: dict[str, Any]) -> dict[str, Any]:
    """The reverse of `expand`: parts with nothing but their head key become one word."""
    return {key: _shorten_section(key, value) if key in HEAD_KEY and isinstance(value, dict) else value for key, value in written.items()}


def _shorten_section(section: str, keys: dict[str, Any]) -> dict[str, Any]:
    out = {}
    for key, value in keys.items():
        head = HEAD_KEY[section].get(key)
        if head and list(value) == [head]:
            out[key] = value[head]
        elif key == "kv_dtype" and len(value) == 2 and value["k"] == value["v"]:
            out[key] = value["k"]
        else:
            out[key] = value
    return out
