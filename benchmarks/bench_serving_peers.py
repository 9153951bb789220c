"""Caches of serving engines beside other estimators: how many tokens the pool of a measured start holds, and how large a stated cache is.

The same question to all: bytes of the cache for the tokens that the engine's log states, against the bytes that the log states. Peers are installed by this
script into an environment of their own; they are given the model's config and the type of the cache, and what one of the ranks holds is worked out as they
say it: a share of the KV heads, at least one where they know of that, latents whole."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from results import table, write_section

HERE = Path(__file__).parent
VENV = HERE / ".venv-peers" / "serving"
PACKAGES = ("hf-mem==0.5.6", "modelinfo-cli==1.4.4", "ridgepoint==0.1.2")
PEERS = ("hf-mem", "modelinfo", "ridgepoint")
BYTES = {"fp8": 1.0, "fp8_e4m3": 1.0, "int8": 1.0, "q8_0": 34 / 32, "q4_0": 18 / 32, "q5_1": 24 / 32}
SERVERS = ("vllm", "sglang")


class Start(NamedTuple):
    """A measured start: its pool and the tokens of it, or a cache that is made at once."""

    record: dict[str, Any]
    config: dict[str, Any]
    bytes: int
    tokens: int
    kind: str

    @property
    def ranks(self) -> int:
        """Ranks that share KV heads."""
        return int((self.record["job"]["serve"].get("mesh") or {}).get("tp", 1))

    @property
    def each(self) -> float:
        """Bytes of a cached number."""
        kv = self.record["job"]["serve"].get("kv_dtype", "auto")
        return BYTES.get(kv if isinstance(kv, str) else kv.get("k", ""), 2.0)


def main() -> int:
    """Installs, asks, prints, records."""
    starts = list(measured())
    rows = [row("everybyte", {start.record["id"]: ours(start) for start in starts}, starts)]
    rows.append(row("2·L·H·d", {start.record["id"]: generic(start) for start in starts}, starts))
    python = interpreter()
    rows += [row(peer, asked(peer, starts, str(python)), starts) for peer in PEERS if python]
    head = ["estimator", "answered", "within 0.3 %", "median error", "worst error", "hybrids, median"]
    text = table(head, rows)
    print(text)
    about = f"{len(starts)} measured starts of vLLM, SGLang and llama.cpp: bytes of the cache for the tokens that the log states, against what it states."
    write_section("Caches of serving engines", f"{about}\n\n{text}")
    return 0


def measured() -> Iterator[Start]:
    """Records that state a pool and its tokens, or a cache and its context, of models with a config."""
    from everybyte.basics.errors import BadInput
    from everybyte.catalog import model_config
    from everybyte.measure.truth import load_records

    for record in load_records():
        serve = record["job"].get("serve") or {}
        model = record["job"]["model"]
        figures = {m["figure"]: m["value"] for m in record["measured"]} | (record.get("given") or {})
        try:
            config = model_config(model) if isinstance(model, str) else model.get("config")
        except BadInput:
            continue
        if config is None:
            continue
        if serve.get("engine") in SERVERS and {"kv.pool", "kv.tokens"} <= figures.keys():
            yield Start(record, dict(config), figures["kv.pool"], figures["kv.tokens"], "pool")
        elif serve.get("engine") == "llama.cpp" and "kv.bytes" in figures and serve.get("context"):
            yield Start(record, dict(config), figures["kv.bytes"], serve["context"], "cache")


def ours(start: Start) -> float | None:
    """Pool: the tokens that we say it holds, turned round; cache: its bytes."""
    from everybyte.basics.errors import BadInput
    from everybyte.estimator import headline

    job = start.record["job"]
    try:
        if start.kind == "cache":
            return headline(job).get("kv.bytes")
        tokens = headline({**job, "given": {"kv.pool": start.bytes}}).get("kv.tokens")
    except BadInput:
        return None
    return start.bytes * start.tokens / tokens if tokens else None


def generic(start: Start) -> float | None:
    """Two times layers, KV heads, width of a head and bytes of a number, for every token."""
    config = {**start.config, **(start.config.get("text_config") or {})}
    heads, layers = config.get("num_attention_heads"), config.get("num_hidden_layers")
    if not heads or not layers:
        return None
    width = config.get("head_dim") or config["hidden_size"] // heads
    kv = config.get("num_key_value_heads") or heads
    return 2 * layers * max(kv / start.ranks, 1) * width * start.each * start.tokens


def asked(peer: str, starts: list[Start], python: str) -> dict[str, float | None]:
    """The peer's answers in an environment of its own."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump([{"id": s.record["id"], "config": s.config, "tokens": s.tokens, "bytes": s.each, "ranks": s.ranks} for s in starts], file)
    done = subprocess.run([python, str(HERE / "peers" / "cache_price.py"), peer, file.name], check=False, capture_output=True, text=True)
    answers: dict[str, float | None] = json.loads(done.stdout or "{}")
    return answers


def row(name: str, answers: dict[str, float | None], starts: list[Start]) -> list[str]:
    """How many it answered, and how near."""
    errors = {s.record["id"]: abs(value / s.bytes - 1) for s in starts if (value := answers.get(s.record["id"]))}
    hybrid = [errors[s.record["id"]] for s in starts if s.record["id"] in errors and "hybrid" in s.record["group"]]
    if not errors:
        return [name, f"0 of {len(starts)}", "", "", "", ""]
    near = sum(error <= 0.003 for error in errors.values())
    shown = f"{statistics.median(hybrid):.1%}" if hybrid else ""
    return [name, f"{len(errors)} of {len(starts)}", f"{near}", f"{statistics.median(errors.values()):.2%}", f"{max(errors.values()):.0%}", shown]


def interpreter() -> Path | None:
    """The Python of the peers' environment, which is made on the first call; None if they cannot be installed."""
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    done = subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=False)
    return python if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
