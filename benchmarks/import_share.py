#!/usr/bin/env python3
"""How many files of a folder `everybyte import` reads: `python benchmarks/import_share.py FOLDER [--verbose]`.

Point it at a checkout with examples of a framework. Counted by format: files read, files refused with a place, keys that no table knows. A file that starts
or configures nothing known is a refusal; a fault of the program is counted apart and must not be.
"""

from __future__ import annotations

import argparse
import collections
from pathlib import Path

from everybyte.basics.errors import BadInput
from everybyte.formats.finish import finish
from everybyte.formats.read import read
from everybyte.formats.source import open_source

ENDINGS = {".yaml", ".yml", ".json", ".toml", ".sh", ".sbatch", ".slurm", ".ps1", ".bat"}


def main() -> int:
    """Prints the shares; the exit code is 1 if the program failed on a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--verbose", action="store_true", help="also the refusals, and the unknown keys by how often they occur")
    asked = parser.parse_args()
    states: collections.Counter[str] = collections.Counter()
    formats: collections.Counter[str] = collections.Counter()
    unknown: collections.Counter[str] = collections.Counter()
    for path in sorted(path for path in asked.folder.rglob("*") if path.suffix in ENDINGS and path.is_file()):
        try:
            jobs = [finish(draft) for draft in read([open_source(str(path))])]
        except BadInput as refusal:
            states["refused with a place"] += 1
            if asked.verbose:
                print(f"refused: {refusal}")
            continue
        except Exception as fault:  # noqa: BLE001  # each fault is counted
            states["failed"] += 1
            print(f"failed: {path}: {type(fault).__name__}: {fault}")
            continue
        states["read"] += 1
        formats.update(job.framework for job in jobs)
        unknown.update(f"{job.framework}: {key.key}" for job in jobs for key in job.unknown)
    total = sum(states.values()) or 1
    for state, count in states.most_common():
        print(f"{state:<22}{count:>6}  {100 * count / total:.1f} %")
    print("jobs by format:", ", ".join(f"{name} {count}" for name, count in formats.most_common()))
    print(f"unknown keys: {sum(unknown.values())} in all, {len(unknown)} kinds")
    for name, count in unknown.most_common(30) if asked.verbose else ():
        print(f"  {count:>4} {name}")
    return 1 if states["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
