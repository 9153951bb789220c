"""Measures short real jobs on one NVIDIA GPU and prints predicted against measured memory.

    python tests/gpu/measure.py                     # all jobs, in under 8 minutes; records go to tests/gpu/records/<gpu>.jsonl
    python tests/gpu/measure.py --jobs 'lora|moe'   # some of them
    python tests/gpu/measure.py --trace tests/gpu/out    # what was measured beside the trace of each job, event by event
    python tests/gpu/measure.py --dry-run           # without a GPU: every job is checked on the CPU, and traced

Needs torch and transformers; peft, bitsandbytes, torchao, liger-kernel and nvidia-ml-py are used if they are there. Predictions also need
msgspec: without it the records are still written, and `--compare FILE` prints the table elsewhere.

--trace takes the memory snapshots of a folder to which this script has written (--out), runs the loops that were measured on fake tensors, and lays the
events of both side by side, run by run: how many agree, in order and size, the peaks, and with --verbose the places where they differ, by the Python
frames on the GPU's side and by operation, module and line on the trace's. It also replays the GPU's own events through the allocator's simulator and counts
the segments that both have. A trace needs no GPU: it runs elsewhere too, on a copy of the folder, or right after the measurement with --tracer PYTHON, an
interpreter that can trace.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE)]

import records  # noqa: E402 - the path is set above, so that the script runs from a bare checkout
from dry_run import dry_run, missing  # noqa: E402
from jobs import JOBS, Measured  # noqa: E402
from worker import Worker  # noqa: E402

Fields = dict[str, Any]
FILLED = 0.8
"""Share of the free memory that --fill may plan with."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default="", metavar="REGEX", help="only jobs whose name matches")
    parser.add_argument("--out", type=Path, default=HERE / "out", metavar="DIR", help="folder for results and memory snapshots (tests/gpu/out)")
    parser.add_argument("--records", type=Path, metavar="FILE", help="truth records (tests/gpu/records/<gpu>.jsonl)")
    parser.add_argument("--minutes", type=float, default=8, help="no job is started after so many minutes (8)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds after which a job is given up (120)")
    parser.add_argument("--fill", action="store_true", help="larger batches where the card has more memory than 24 GB")
    parser.add_argument("--no-snapshots", action="store_true", help="no memory snapshots")
    parser.add_argument("--list", action="store_true", help="names the jobs and what they need")
    parser.add_argument("--dry-run", action="store_true", help="checks every job on the CPU")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="only prints the table of the records in a file")
    parser.add_argument("--trace", type=Path, metavar="DIR", help="only compares the snapshots of a folder with the traces of their jobs")
    parser.add_argument("--tracer", metavar="PYTHON", help="an interpreter that does so right after the measurement")
    parser.add_argument("--verbose", action="store_true", help="says where a trace differs")
    return parser.parse_args()


def main() -> int:
    """0 if every job ran (dry run: and agreed), 1 if one did not."""
    args = arguments()
    jobs = [measured for measured in JOBS if re.search(args.jobs, measured.name)]
    if args.list:
        print("\n".join(f"{m.name:28} {' '.join(m.needs)}".rstrip() for m in jobs))
        return 0
    if args.compare:
        print("\n".join(records.table(records.read(args.compare))))
        return 0
    if args.trace:
        from against import table

        for line in table(args.trace, args.jobs, args.verbose):
            print(line, flush=True)
        return 0
    if not args.dry_run:
        import torch

        if torch.cuda.is_available():
            return measure(jobs, args)
        print("no NVIDIA GPU that torch can use here: this is the dry run, which checks every job on the CPU", flush=True)
    return check(jobs, args.verbose)


def check(jobs: list[Measured], verbose: bool) -> int:
    """The dry run."""
    failed = 0
    for found in dry_run(jobs):
        failed += not found.ok
        print(f"{'ok  ' if found.ok else 'FAIL'} {found.name:28} {found.text}", flush=True)
        if verbose and found.details:
            print("\n".join(found.details), flush=True)
    print(f"{len(jobs) - failed} of {len(jobs)} jobs are fine")
    return 1 if failed else 0


def measure(jobs: list[Measured], args: argparse.Namespace) -> int:
    """Runs the jobs one after the other, writes results, snapshots and records, prints the table."""
    args.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * args.minutes
    found: list[Fields] = []
    failed = 0
    spare = Worker()
    for index, measured in enumerate(jobs):
        if missing(measured):
            print(f"skip {measured.name:28} {', '.join(missing(measured))} is not installed", flush=True)
            continue
        if time.monotonic() > end:
            print(f"stop: {args.minutes:g} minutes are over, {len(jobs) - index} jobs were not started", flush=True)
            break
        asked = filled(measured) if args.fill else measured
        worker, spare = spare, Worker()
        begin = time.monotonic()
        snapshot = None if args.no_snapshots else str((args.out / f"{measured.name}.pickle").resolve())
        result = worker.run({"job": asked.job, "snapshot": snapshot}, args.timeout)
        with (args.out / "results.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps({"name": measured.name, "job": asked.job, **result}) + "\n")
        failed += "figures" not in result
        print(f"{outcome(result):4} {measured.name:28} {time.monotonic() - begin:5.1f} s  {described(result)}", flush=True)
        if "figures" in result:
            found.append(records.record(asked, result))
    spare.stop()
    report(found, args)
    if args.tracer:
        print(flush=True)
        wanted = ["--trace", str(args.out), "--jobs", args.jobs, *(["--verbose"] if args.verbose else [])]
        failed += subprocess.run([args.tracer, __file__, *wanted], check=False).returncode != 0
    return 1 if failed else 0


def outcome(result: Fields) -> str:
    """One word for a result."""
    return "ok" if "figures" in result else ("OOM" if result.get("oom") else "FAIL")


def described(result: Fields) -> str:
    """The figures in GiB, or what went wrong."""
    if "figures" not in result:
        return str(result.get("error", ""))
    return "  ".join(f"{name} {value / 2**30:.3f}" for name, value in result["figures"].items())


def report(found: list[Fields], args: argparse.Namespace) -> None:
    """Writes the records and prints the table."""
    if not found:
        return
    path = args.records or HERE / "records" / f"{records.slug(found[0]['note'].split(',')[0])}.jsonl"
    records.write(path, found)
    print(f"\n{len(found)} records in {path}\n")
    try:
        print("\n".join(records.table(found)))
    except ImportError as error:
        print(f"no predictions here ({error}); `measure.py --compare {path}` prints them where msgspec is installed")


def filled(measured: Measured) -> Measured:
    """The job with its batch doubled as long as everybyte says that it fits the free memory of this card."""
    import torch

    from everybyte import estimate

    free, _ = torch.cuda.mem_get_info()
    job = measured.job
    while True:
        larger = copy.deepcopy(job)
        if "train" in larger:
            larger["train"]["micro_batch"] *= 2
        else:
            larger["serve"]["sequences"] *= 2
        if estimate(larger).figures["peak.device"] > FILLED * free:
            return Measured(measured.name, job, measured.needs)
        job = larger


if __name__ == "__main__":
    sys.exit(main())
