"""Measured runs of Hugging Face models on one GPU beside what their trace says and what the estimate says. Run by `make trace-truth`; names of records
or of groups choose others than the sample."""

from __future__ import annotations

import sys
import time
from typing import Any

from everybyte import estimate
from everybyte.allocator.settings import read_alloc_conf
from everybyte.basics.errors import EverybyteError
from everybyte.measure.accuracy import quantile, relative_error
from everybyte.measure.truth import load_records
from everybyte.trace.jobs.program import asked_of
from everybyte.trace.results.answer import answer_of
from everybyte.trace.run import run

SAMPLE = ("fms-full-1gpu", "fms-lora", "fms-qlora", "t4-qlora", "vramcalc", "liger-hf")
"""Groups whose jobs a trace follows, but for those with Triton kernels, which it refuses by name."""
FIGURES = ("peak.allocated", "static.allocated", "peak.reserved")


def main(wanted: tuple[str, ...]) -> int:
    """Prints a line for each figure, and how large the errors are."""
    errors: dict[str, list[float]] = {"trace": [], "estimate": []}
    for record in load_records():
        if "train" in record["job"] and {record["id"], record["group"]} & set(wanted):
            compare(record, errors)
    for name, found in errors.items():
        if found:
            sizes = [abs(error) for error in found]
            print(f"{name}: median |error| {quantile(sizes, 0.5):.2%}, 90th percentile {quantile(sizes, 0.9):.2%} of {len(found)} figures")
    return 0


def compare(record: dict[str, Any], errors: dict[str, list[float]]) -> None:
    """Traces one record and adds its errors."""
    started = time.monotonic()
    try:
        asked = asked_of(record["job"])
        traced = answer_of(run(asked), asked, read_alloc_conf((record["job"].get("env") or {}).get("alloc_conf", ""), "env.alloc_conf"))
    except EverybyteError as error:
        print(f"{record['id']:10} refused: {str(error)[:110]}")
        return
    answers = {"trace": traced.figures, "estimate": estimate(record["job"]).figures}
    for measured in record["measured"]:
        if measured["figure"] not in FIGURES:
            continue
        value, slack, words = measured["value"], (measured.get("resolution") or 0) / 2, []
        for name, figures in answers.items():
            error = relative_error(figures[measured["figure"]], value, slack)
            errors[name].append(error)
            words.append(f"{name} {figures[measured['figure']] / 2**30:8.3f} GiB {error:+7.2%}")
        print(f"{record['id']:10} {record['job'].get('name', '')[:44]:44} {measured['figure']:16} measured {value / 2**30:8.3f} GiB  {'  '.join(words)}")
    print(f"{'':10} traced in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:]) or SAMPLE))
