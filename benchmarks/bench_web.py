"""Speed of the HTTP API: `everybyte ui` under the load generator wrk, both on the same cores.

`python benchmarks/bench_web.py` prints a table, writes it to results.md and exits with 1 when a limit is missed. Twenty jobs are posted in turn: ten training
jobs on one and on several GPUs, ten servers. Once as they are, again and again, as from a page that several people look at; once each with another sequence
length or context every time, as from a slider, so that every answer is computed from the ground up.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from results import table, write_section

SECONDS, CONNECTIONS, THREADS = 15, 16, 2
LEAST_PER_SECOND, MOST_P99_MS = 250, 150
SCRIPT = Path(__file__).with_name("bench_web.lua")
BIN = Path(sys.executable).parent


class Measured(NamedTuple):
    """One run of the load generator."""

    per_second: float
    median_ms: float
    p99_ms: float
    failed: int


def train(model: str, gpu: str, gpus: int, seq_len: int, **settings: Any) -> dict[str, Any]:
    """A training job."""
    return {"model": model, "hardware": {"gpu": gpu, "gpus": gpus}, "train": {"micro_batch": 1, **settings, "seq_len": seq_len}}


def serve(model: str, gpu: str, engine: str, context: int, tp: int = 1, **settings: Any) -> dict[str, Any]:
    """A server."""
    mesh = {"mesh": {"tp": tp}} if tp > 1 else {}
    return {"model": model, "hardware": {"gpu": gpu, "gpus": tp}, "serve": {"engine": engine, **mesh, **settings, "context": context}}


LORA = {"kind": "lora", "rank": 16}
JOBS = [
    train("meta-llama/Meta-Llama-3.1-8B", "rtx-4090", 1, 2048, framework="trl", precision="bf16", adapter=LORA, quantization="nf4", recompute="full"),
    train("Qwen/Qwen2.5-7B", "a100-80gb", 1, 2048, framework="transformers", micro_batch=2, precision="bf16-mixed", adapter=LORA),
    train("Qwen/Qwen3-4B", "h100-80gb", 1, 1024, micro_batch=4, precision="bf16"),
    train("meta-llama/Llama-3.2-3B", "a100-80gb", 1, 4096, framework="transformers", precision="bf16-mixed", recompute="full"),
    train("google/gemma-2-9b", "h100-80gb", 1, 2048, framework="trl", precision="bf16", adapter=LORA, recompute="full"),
    train("mistralai/Mistral-7B-v0.1", "a100-80gb", 8, 4096, framework="transformers", precision="bf16-mixed", sharding="fsdp2", recompute="full"),
    train("meta-llama/Meta-Llama-3.1-8B", "h100-80gb", 8, 8192, framework="torchtitan", sharding="fsdp2", mesh={"tp": 2}),
    train("meta-llama/Meta-Llama-3.1-70B", "h100-80gb", 64, 4096, framework="megatron", mesh={"tp": 8, "pp": 4, "sp": True}, grad_accum=16),
    train("mistralai/Mixtral-8x7B-v0.1", "h100-80gb", 64, 4096, framework="megatron", mesh={"tp": 2, "pp": 4, "ep": 8}, grad_accum=16),
    train("Qwen/Qwen2.5-14B", "a100-80gb", 8, 4096, framework="deepspeed", sharding="zero3", precision="bf16-master", recompute="full"),
    serve("meta-llama/Meta-Llama-3.1-8B", "l40s", "vllm", 8192),
    serve("meta-llama/Meta-Llama-3.1-70B", "h100-80gb", "vllm", 32768, tp=4),
    serve("Qwen/Qwen3-30B-A3B", "a100-80gb", "vllm", 16384),
    serve("Qwen/Qwen2.5-7B", "rtx-4090", "sglang", 16384),
    serve("meta-llama/Meta-Llama-3.1-8B", "rtx-4090", "llama.cpp", 8192, weights="q4_k_m"),
    serve("Qwen/Qwen2.5-14B", "rtx-4090", "llama.cpp", 16384, weights="q5_k_m"),
    serve("mistralai/Mistral-7B-v0.1", "l40s", "transformers", 8192),
    serve("google/gemma-2-9b", "l40s", "tgi", 4096),
    serve("Qwen/Qwen2.5-7B", "l40s", "lmdeploy", 16384),
    serve("Qwen/Qwen2.5-32B", "h100-80gb", "tensorrt-llm", 16384, tp=2),
]


def main() -> int:
    """Measures, prints, records; 1 if a limit is missed."""
    if shutil.which("wrk") is None:
        print("needs wrk, the load generator (Debian: apt-get install wrk)", file=sys.stderr)
        return 2
    process = subprocess.Popen([BIN / "everybyte", "ui", "--port", "0", "--no-browser"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        base = process.stdout.readline().split()[3]
        with tempfile.TemporaryDirectory() as folder:
            jobs = Path(folder) / "jobs"
            jobs.write_text("".join(f"{line(job)}\n" for job in JOBS), encoding="utf-8")
            load(base, jobs, fresh=False, seconds=5)  # fills the caches of both workers: models, layers, the first lengths
            again = load(base, jobs, fresh=False, seconds=SECONDS)
            fresh = load(base, jobs, fresh=True, seconds=SECONDS)
    finally:
        process.terminate()
        process.wait(10)
    fine = all(m.per_second >= LEAST_PER_SECOND and m.p99_ms <= MOST_P99_MS and not m.failed for m in (again, fresh))
    body = table(
        ["20 jobs in turn", "estimates a second", "limit", "median", "p99", "limit", "failed"],
        [row("the same again", again), row("each with a new length", fresh)],
    )
    print(body)
    words = f"wrk with {CONNECTIONS} connections on {THREADS} threads for {SECONDS} s, on the same cores as the server and its workers."
    write_section("HTTP API", f"{words}\n\n{body}")
    return 0 if fine else 1


def line(job: dict[str, Any]) -> str:
    """The job as the script of the load generator reads it: its length is where numbers go in."""
    length = job["train"]["seq_len"] if "train" in job else job["serve"]["context"]
    text = json.dumps(job)
    key = "seq_len" if "train" in job else "context"
    return text.replace(f'"{key}": {length}', f'"{key}": LENGTH@{length}')


def load(base: str, jobs: Path, *, fresh: bool, seconds: int) -> Measured:
    """Posts the jobs as fast as they are answered."""
    command = ["wrk", f"-t{THREADS}", f"-c{CONNECTIONS}", f"-d{seconds}s", "--timeout", "10s", "-s", str(SCRIPT), f"{base}api/estimate", "--", str(jobs)]
    done = subprocess.run([*command, str(int(fresh))], capture_output=True, text=True, check=True)
    found = next(line for line in done.stdout.splitlines() if line.startswith("RESULT")).split()
    requests, microseconds, median, p99, failed = (float(word) for word in found[1:])
    return Measured(requests / (microseconds / 1e6), median, p99, int(failed))


def row(name: str, m: Measured) -> list[str]:
    """A row of the table."""
    return [name, f"{m.per_second:,.0f}", f"{LEAST_PER_SECOND}", f"{m.median_ms:.0f} ms", f"{m.p99_ms:.0f} ms", f"{MOST_P99_MS} ms", f"{m.failed}"]


if __name__ == "__main__":
    sys.exit(main())
