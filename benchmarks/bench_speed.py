"""Speed, as ratios to a bare interpreter measured in the same run, so that they mean the same on any machine.

`python benchmarks/bench_speed.py` prints a table, writes it to results.md and exits with 1 when a limit is missed.
"""

from __future__ import annotations

import compileall
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from results import table, write_section

import everybyte

ROUNDS = 15
COMMAND = Path(sys.executable).with_name("everybyte")
JOB = Path(__file__).parents[1] / "examples" / "llama-3.1-8b-lora-24gb.yaml"
JOB_70B = {
    "model": "meta-llama/Meta-Llama-3.1-70B",
    "hardware": {"gpu": "h200", "gpus": 1},
    "train": {
        "framework": "transformers", "micro_batch": 1, "seq_len": 4096, "precision": "bf16", "optimizer": "adamw", "recompute": "full",
        "adapter": {"kind": "lora", "rank": 16, "targets": "all-linear"},
    },
}  # fmt: skip

IMPORT_LIMIT = 2.0
"""`import everybyte` may take this many bare starts above one."""
ESTIMATE_LIMIT = 6.0
"""`everybyte estimate job.yaml --json` may take this many bare starts."""
WARM_LIMIT_MS = 1.0
HEADLINE_LIMIT_MS = 0.2


def main() -> int:
    """Measures, prints, records; 1 if a limit is missed."""
    bare, imported, estimated = starts()
    warm, headline = warm_ms()
    rows = [
        ("bare interpreter start", f"{1000 * bare:.1f} ms", "", True),
        ("import everybyte, above a bare start", f"{imported / bare - 1:.2f} starts", f"{IMPORT_LIMIT:g} starts", imported / bare - 1 <= IMPORT_LIMIT),
        (f"everybyte estimate {JOB.name} --json", f"{estimated / bare:.2f} starts", f"{ESTIMATE_LIMIT:g} starts", estimated / bare <= ESTIMATE_LIMIT),
        ("warm estimate of a 70B job, full ledger", f"{warm:.3f} ms", f"{WARM_LIMIT_MS:g} ms", warm <= WARM_LIMIT_MS),
        ("warm headline figures of a 70B job", f"{headline:.3f} ms", f"{HEADLINE_LIMIT_MS:g} ms", headline <= HEADLINE_LIMIT_MS),
    ]
    text = table(["what", "measured", "limit", "held"], [[what, value, limit, "yes" if held else "NO"] for what, value, limit, held in rows])
    print(text)
    write_section("Speed", f"Best of {ROUNDS} starts each, in turn; warm figures are the median of batches.\n\n{text}")
    return 0 if all(held for *_, held in rows) else 1


def starts() -> tuple[float, float, float]:
    """Seconds of a bare start, a start that imports the package, and a start of the command on a job file: the best of interleaved rounds."""
    compileall.compile_dir(Path(everybyte.__file__).parent, quiet=1)  # bytecode, as an installed package has it
    commands = ([sys.executable, "-c", "pass"], [sys.executable, "-c", "import everybyte"], [str(COMMAND), "estimate", str(JOB), "--json"])
    best = [float("inf")] * len(commands)
    for _ in range(ROUNDS):
        for i, command in enumerate(commands):
            best[i] = min(best[i], wall(command))
    return best[0], best[1], best[2]


def wall(command: list[str]) -> float:
    """Seconds from start to end of a process."""
    begin = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, env=os.environ | {"NO_COLOR": "1"})
    seconds = time.perf_counter() - begin
    if done.returncode not in (0, 1):  # 1 is an answer: it does not fit
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.decode()[-300:]}")
    return seconds


def warm_ms() -> tuple[float, float]:
    """Milliseconds of an answer with its full ledger, and of its headline figures alone, in a process that has answered before."""
    from everybyte import estimate, headline, read_job

    job = read_job(JOB_70B)
    return milliseconds(lambda: estimate(job)), milliseconds(lambda: headline(job))


def milliseconds(ask: Callable[[], object]) -> float:
    """The median over batches of ten calls."""
    ask()
    batches = []
    for _ in range(30):
        begin = time.perf_counter()
        for _ in range(10):
            ask()
        batches.append((time.perf_counter() - begin) * 100)
    return statistics.median(batches)


if __name__ == "__main__":
    sys.exit(main())
