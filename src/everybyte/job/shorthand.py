"""Short ways to write a part of a job: `optimizer: adamw` stands for `optimizer: {name: adamw}`. One table serves reading and writing."""

from __future__ import annotations

import re
from typing import Any

from everybyte.basics.units import GiB

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
    return {key: _expanded(key, value) if isinstance(value, dict) else value for key, value in raw.items()}


def _expanded(section: str, keys: dict[str, Any]) -> dict[str, Any]:
    if section == "hardware" and isinstance(keys.get("gpu"), str):
        return _expand_gpu(keys)
    return _expand_section(section, keys) if section in HEAD_KEY else keys


COUNTED_GPU = re.compile(r"\s*([0-9]{1,6})\s*[x×*]\s*([^\s].*)", re.IGNORECASE)
"""`8xh200`: so many GPUs of a name."""
SIZED_GPU = re.compile(r"\s*([0-9]{1,4}(?:\.[0-9]+)?)\s*(?:gib|gb|g)\s*", re.IGNORECASE)
"""`24GB`: a GPU of which only the memory is known. Makers count memory chips in GiB and write GB."""


def _expand_gpu(keys: dict[str, Any]) -> dict[str, Any]:
    """`8xh200` also says how many; `24GB` is a GPU without a name."""
    counted = COUNTED_GPU.fullmatch(keys["gpu"])
    if counted is not None and keys.get("gpus") in (None, int(counted[1])):
        keys = {**keys, "gpu": counted[2], "gpus": int(counted[1])}
    sized = SIZED_GPU.fullmatch(keys["gpu"])
    if sized is not None:
        keys = {**keys, "gpu": {"memory_bytes": round(float(sized[1]) * GiB), "name": f"{sized[1]} GB GPU"}}
    return keys


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
