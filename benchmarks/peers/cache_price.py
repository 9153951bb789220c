"""Bytes of the cache of many sequences' tokens, as each peer works them out of a config.json. Runs in the environment of the peers:
`cache_price.py hf-mem|modelinfo|ridgepoint TASKS.json` prints one JSON object, id -> bytes of one rank."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

Task = dict[str, Any]


def main() -> None:
    """Answers every task that the peer can."""
    peer, path = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        tasks = json.load(file)
    found = {}
    for task in tasks:
        try:
            found[task["id"]] = PEERS[peer](task)
        except Exception as error:  # noqa: BLE001  # what a peer cannot answer is left out
            print(task["id"], repr(error)[:100], file=sys.stderr)
    print(json.dumps(found))


def text_of(task: Task) -> dict[str, Any]:
    """The part of the config that describes the language model."""
    config = task["config"]
    return {**config, **(config.get("text_config") or {})}


def hf_mem(task: Task) -> float:
    """hf-mem's function for safetensors models."""
    from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size

    return compute_safetensors_kv_cache_size(text_of(task), "F8_E4M3" if task["bytes"] == 1 else "BF16", task["tokens"]) / task["ranks"]


def modelinfo(task: Task) -> float:
    """modelinfo-cli's footprint; it knows a 16-bit cache alone."""
    from modelinfo.calculator import calculate_footprint

    return float(calculate_footprint({"__metadata__": {}}, task["tokens"], 1, text_of(task))["kv_cache_bytes"]) / task["ranks"]


def ridgepoint(task: Task) -> float:
    """The shape that ridgepoint's adapter makes of a config, priced by its rule for each geometry."""
    import ridgepoint.hf as adapter

    adapter._download_json = lambda repo, filename, revision: task["config"]  # type: ignore[assignment]  # noqa: SLF001
    adapter._params_from_index = lambda *_: 0  # noqa: SLF001
    shape = adapter.fetch_shape("a/b")
    heads = max(shape.get("n_kv_heads", shape.get("n_heads", 0)) / task["ranks"], 1)
    width = shape["d_c"] + shape["d_rope"] if shape["geom"] == "mla" else 2 * shape["head_dim"] * heads
    return shape["kv_layers"] * width * task["bytes"] * task["tokens"]


PEERS: dict[str, Callable[[Task], float]] = {"hf-mem": hf_mem, "modelinfo": modelinfo, "ridgepoint": ridgepoint}

if __name__ == "__main__":
    main()
