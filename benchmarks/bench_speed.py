"""Speed on jobs not seen before, as ratios to a bare start of the interpreter in the same run, so that they mean the same on any machine.

Every timed call asks for something new: another process, another model, another length. A job that is asked again is answered from a memo, and its time
says nothing. `python benchmarks/bench_speed.py` prints a table, writes it to results.md and exits with 1 when a limit is missed. Times are those of the
processor, so that other programs disturb less.
"""

from __future__ import annotations

import compileall
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results import held, table, write_section

import everybyte

ROUNDS = 15
COMMAND = Path(sys.executable).with_name("everybyte")
JOB = Path(__file__).parents[1] / "examples" / "llama-3.1-8b-lora-24gb.yaml"
LENGTHS = range(1024, 16384, 1024)
FIRST = 640
"""A length that fills the caches which do not depend on it: layers, weights, states."""

IMPORT_LIMIT = 2.0
"""`import everybyte` may take this many bare starts above one."""
ESTIMATE_LIMIT = 6.0
"""`everybyte estimate job.yaml --json` may take this many bare starts."""
LENGTH_LIMIT = 0.25
"""A full answer with reserved bytes for a new length, in a process that knows the model."""
MODEL_LIMIT = 1.0
"""A full answer for a model that the process has not seen."""
HEADLINE_LIMIT_MS, EXPERTS_LIMIT_MS = 0.4, 0.6


def train(model: str, gpus: int, framework: str, **settings: Any) -> dict[str, Any]:
    """A training job."""
    return {"model": model, "hardware": {"gpu": "h200", "gpus": gpus}, "train": {"framework": framework, "micro_batch": 1, "seq_len": FIRST, **settings}}


LORA = {"kind": "lora", "rank": 16, "targets": "all-linear"}
JOBS: dict[str, dict[str, Any]] = {
    "Llama 3.1 8B, LoRA": train("meta-llama/Meta-Llama-3.1-8B", 1, "trl", precision="bf16", adapter=LORA, recompute="full"),
    "Llama 3.2 3B, full fine-tune": train("meta-llama/Llama-3.2-3B", 1, "transformers", precision="bf16"),
    "Llama 3.1 70B, FSDP2 on 64 GPUs": train("meta-llama/Meta-Llama-3.1-70B", 64, "torchtitan", sharding="fsdp2", recompute="full"),
    "Llama 3.1 70B, ZeRO-3 on 64 GPUs": train("meta-llama/Meta-Llama-3.1-70B", 64, "deepspeed", sharding="zero3", precision="bf16-master", recompute="full"),
    "Llama 3.1 70B, Megatron on 256 GPUs": train(
        "meta-llama/Meta-Llama-3.1-70B", 256, "megatron", grad_accum=16, sharding="distributed-optimizer", mesh={"tp": 8, "sp": True, "pp": 4}
    ),
    "Mixtral 8x7B, Megatron on 64 GPUs": train(
        "mistralai/Mixtral-8x7B-v0.1",
        64,
        "megatron",
        grad_accum=16,
        sharding="distributed-optimizer",
        mesh={"tp": 2, "sp": True, "ep": 8},
        extra={"moe-token-dispatcher-type": "alltoall", "moe-grouped-gemm": True},
    ),
    "Llama 3.1 8B, vLLM": {
        "model": "meta-llama/Meta-Llama-3.1-8B",
        "hardware": {"gpu": "l40s", "gpus": 1},
        "serve": {"engine": "vllm", "context": FIRST},
    },
}
MODELS = (
    "Qwen/Qwen2.5-7B",
    "mistralai/Mistral-7B-v0.1",
    "google/gemma-2-9b",
    "microsoft/phi-2",
    "Qwen/Qwen3-4B",
    "google/gemma-2b",
    "01-ai/Yi-1.5-9B",
    "EleutherAI/pythia-1.4b",
    "allenai/OLMo-1B-hf",
    "Qwen/Qwen3-30B-A3B",
    "mistralai/Mixtral-8x7B-v0.1",
)
"""Families and sizes of all kinds; each is asked for once."""


def main() -> int:
    """Measures, prints, records; 1 if a limit is missed."""
    bare, imported, estimated = starts()
    rows = [
        ("bare interpreter start", f"{1000 * bare:.1f} ms", "", True),
        in_starts("import everybyte, above a bare start", imported - bare, bare, IMPORT_LIMIT),
        in_starts(f"everybyte estimate {JOB.name} --json", estimated, bare, ESTIMATE_LIMIT),
        in_starts("a new model, LoRA on one GPU, in full", new_model(), bare, MODEL_LIMIT),
    ]
    for name, job in JOBS.items():
        full, headline = new_lengths(job)
        rows.append(in_starts(f"{name}: a new length, in full", full, bare, LENGTH_LIMIT))
        limit = EXPERTS_LIMIT_MS if "Mixtral" in name else HEADLINE_LIMIT_MS
        rows.append((f"{name}: a new length, headline", f"{1000 * headline:.2f} ms", f"{limit:g} ms", 1000 * headline <= limit))
    text = table(["what", "measured", "limit", "held"], [[what, value, limit, held(fine)] for what, value, limit, fine in rows])
    print(text)
    words = (
        f"Processor time. Starts: the best of {ROUNDS}, in turn. The others: the median of calls, each of which asks for a model or a length not seen before."
    )
    write_section("Speed", f"{words}\n\n{text}")
    return 0 if all(fine for *_, fine in rows) else 1


def in_starts(what: str, seconds: float, bare: float, limit: float) -> tuple[str, str, str, bool]:
    """A row whose limit is in bare starts."""
    return what, f"{seconds / bare:.2f} starts ({1000 * seconds:.1f} ms)", f"{limit:g} starts", seconds <= limit * bare


def starts() -> tuple[float, float, float]:
    """Seconds of a bare start, a start that imports the package, and a start of the command on a job file: the best of interleaved rounds."""
    compileall.compile_dir(Path(everybyte.__file__).parent, quiet=1)  # bytecode, as an installed package has it
    commands = ([sys.executable, "-c", "pass"], [sys.executable, "-c", "import everybyte"], [str(COMMAND), "estimate", str(JOB), "--json"])
    best = [float("inf")] * len(commands)
    for _ in range(ROUNDS):
        for i, command in enumerate(commands):
            best[i] = min(best[i], processor_seconds(command))
    return best[0], best[1], best[2]


def processor_seconds(command: list[str]) -> float:
    """Seconds of processor time of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, check=False, capture_output=True, env=os.environ | {"NO_COLOR": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):  # 1 is an answer: it does not fit
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.decode()[-300:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def new_model() -> float:
    """Seconds of an answer for a model that this process has not seen; the first one, which loads the modules, is not counted."""
    jobs = [train(model, 1, "transformers", precision="bf16", adapter=LORA, recompute="full") for model in ("meta-llama/Llama-2-7b-hf", *MODELS)]
    return statistics.median([seconds(lambda job=job: everybyte.estimate(job)) for job in jobs][1:])  # type: ignore[misc]  # the default binds the job


def new_lengths(job: dict[str, Any]) -> tuple[float, float]:
    """Seconds of a full answer and of the headline, for lengths that were not asked before."""
    everybyte.estimate(job)
    part, key = ("train", "seq_len") if "train" in job else ("serve", "context")
    full, headline = [], []
    for length in LENGTHS:
        asked, other = ({**job, part: {**job[part], key: each}} for each in (length, length + 512))
        full.append(seconds(lambda asked=asked: everybyte.estimate(asked)))  # type: ignore[misc]  # the default binds the job
        headline.append(seconds(lambda other=other: everybyte.headline(other)))  # type: ignore[misc]
    return statistics.median(full), statistics.median(headline)


def seconds(ask: Callable[[], object]) -> float:
    """Processor time of one call."""
    begin = time.process_time()
    ask()
    return time.process_time() - begin


if __name__ == "__main__":
    sys.exit(main())
