"""Speed of distributed training: thousands of different layouts of one model, as a planner asks for them. No layout is asked for twice.

`python benchmarks/bench_layouts.py` prints a table, writes it to results.md and exits with 1 when a limit is missed. Times are those of the processor, so
that other programs disturb less; each set of layouts starts with empty caches, in a process of its own.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from typing import Any

from results import held, table, write_section

from everybyte import headline
from everybyte.basics.errors import BadInput

LAYOUTS = 10_000
DENSE_LIMIT_MS = 0.4
EXPERTS_LIMIT_MS = 0.6

SETS: dict[str, tuple[str, str]] = {
    "Llama 3.1 70B, megatron": ("meta-llama/Meta-Llama-3.1-70B", "megatron"),
    "Llama 3.1 405B, megatron": ("meta-llama/Meta-Llama-3.1-405B", "megatron"),
    "Mixtral 8x7B, megatron": ("mistralai/Mixtral-8x7B-v0.1", "megatron"),
    "Qwen3 235B-A22B, megatron": ("Qwen/Qwen3-235B-A22B", "megatron"),
    "Llama 3.1 70B, torchtitan": ("meta-llama/Meta-Llama-3.1-70B", "torchtitan"),
    "Llama 3.1 70B, FSDP of transformers": ("meta-llama/Meta-Llama-3.1-70B", "transformers"),
    "Llama 3.1 70B, ZeRO of DeepSpeed": ("meta-llama/Meta-Llama-3.1-70B", "deepspeed"),
}
EXPERTS = ("Mixtral", "A22B")
UNEVEN = ("405B", "235B")
"""Layers that are divisible by the stages with the embedding and the loss counted as layers."""


def main() -> int:
    """Measures, prints, records; 1 if a limit is missed."""
    rows, fine = [], True
    for name in SETS:
        limit = EXPERTS_LIMIT_MS if any(word in name for word in EXPERTS) else DENSE_LIMIT_MS
        done = subprocess.run([sys.executable, __file__, name], check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        each = 1000 * found["seconds"] / found["layouts"]
        rows.append([f"{name}: {found['layouts']:,} layouts, each", f"{each:.3f} ms", f"{limit:g} ms", held(each <= limit)])
        fine &= each <= limit
    text = table(["what", "measured", "limit", "held"], rows)
    print(text)
    write_section("Layouts", f"Processor time of the headline figures; each set of layouts begins with empty caches, and no layout comes twice.\n\n{text}")
    return 0 if fine else 1


def run(name: str) -> None:
    """Draws layouts until so many are answered; prints how many and how long it took, those that are refused included."""
    drawing, seen, answered, seconds = random.Random(7), set[str](), 0, 0.0
    for _ in range(4 * LAYOUTS):
        job = draw(drawing, *SETS[name])
        key = json.dumps(job)
        if key in seen:
            continue
        seen.add(key)
        begin = time.process_time()
        try:
            headline(job)
            answered += 1
        except BadInput:
            pass
        seconds += time.process_time() - begin
        if answered == LAYOUTS:
            break
    print(json.dumps({"layouts": answered, "seconds": seconds}))


def draw(r: random.Random, model: str, framework: str) -> dict[str, Any]:
    """A layout of a model: GPUs, axes, chunks, batch, sequence, recomputing, sharding."""
    train: dict[str, Any] = {
        "framework": framework,
        "micro_batch": r.choice((1, 2, 3, 4, 6, 8)),
        "seq_len": r.choice((2048, 4096, 8192, 16384, 32768)),
        "grad_accum": r.choice((8, 16, 32, 64, 128)),
        "recompute": r.choice(("none", "selective", "full")),
    }
    if framework in ("megatron", "torchtitan"):
        train |= _divided(r, model, framework)
    if framework == "megatron":
        train["sharding"] = r.choice(("ddp", "distributed-optimizer", "distributed-optimizer"))
    elif framework == "torchtitan":
        train |= {"sharding": r.choice(("fsdp2", "fsdp2-no-reshard", "hsdp")), "compile": r.random() < 0.5}
    else:
        train |= {"recompute": r.choice(("none", "full")), "micro_batch": r.randint(1, 16)}
        ways = ("fsdp1", "fsdp1-grad-op", "fsdp2", "fsdp2-no-reshard", "hsdp") if framework == "transformers" else ("zero1", "zero2", "zero3")
        train |= {"sharding": r.choice(ways), "precision": "bf16-mixed" if framework == "transformers" else r.choice(("bf16", "bf16-master"))}
    return {"model": model, "hardware": {"gpu": "h100-80gb", "gpus": r.choice((64, 128, 256, 512, 1024, 2048))}, "train": train}


def _divided(r: random.Random, model: str, framework: str) -> dict[str, Any]:
    """The axes of a model-parallel layout, and its pipeline."""
    tp, pp, virtual = r.choice((1, 2, 4, 8)), r.choice((1, 2, 4, 8, 16)), r.choice((1, 1, 2, 4, 5))
    found: dict[str, Any] = {"mesh": {"tp": tp, "pp": pp, "cp": r.choice((1, 2, 4))}}
    if framework == "megatron":
        found["mesh"]["sp"] = tp > 1
    if pp > 1:
        found["pipeline"] = {"schedule": "interleaved", "virtual": virtual} if virtual > 1 else {"schedule": "1f1b"}
    extra: dict[str, Any] = {}
    if any(word in model for word in EXPERTS):
        found["mesh"] |= {"ep": r.choice((1, 2, 4, 8)), "etp": 1}
        extra |= {"moe-token-dispatcher-type": "alltoall", "moe-grouped-gemm": True}
    if pp > 1 and any(word in model for word in UNEVEN):
        extra |= {"account-for-embedding-in-pipeline-split": True, "account-for-loss-in-pipeline-split": True}
    return {**found, "extra": extra} if extra else found


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        sys.exit(main())
