"""Where layouts of record stand in a plan: `python scripts/published_layouts.py FILE.jsonl [ID ...]`.

Each line of the file names a model, a cluster and the layout that somebody ran. The plan is asked for the same cluster, and the best layout of the published
mesh is looked for in it: its place among the meshes, its time over the best, or the reason why it is not there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everybyte.basics.errors import EverybyteError
from everybyte.job import read_job
from everybyte.plan.layouts.asked import Asked, asked_for
from everybyte.plan.layouts.layout import Layout
from everybyte.plan.money import Rent
from everybyte.plan.search import Found, search

TOP = 40
"""Meshes that are ranked."""


def asked_of(row: Mapping[str, Any]) -> Asked:
    """The question that a published layout is one answer to."""
    train = {
        "framework": "megatron",
        "micro_batch": 1,
        "seq_len": row["seq"],
        "precision": row["precision"],
        "optimizer": "adamw",
        "attention": "te",
        "kernels": ["te"],
    }
    hardware = {"gpu": row["gpu"], "gpus": row["gpus"], "gpus_per_node": row["gpn"]}
    return asked_for(read_job({"model": row["model"], "hardware": hardware, "train": train}), row["gpus"], global_batch=row["global_batch"])


def is_mesh(layout: Layout, published: Mapping[str, Any]) -> bool:
    """Whether a layout has the published axes."""
    return all(getattr(layout, axis) == published.get(axis, 1) for axis in ("tp", "cp", "pp", "ep"))


def verdict(row: Mapping[str, Any], found: Found) -> str:
    """Place and time of the published mesh, or why it is missing."""
    for place, plan in enumerate(found.plans, start=1):
        if is_mesh(plan.layout, row["layout"]):
            slower = plan.seconds / found.plans[0].seconds - 1
            return f"{place} of {len(found.plans)} meshes, {slower:+.1%}, {plan.layout.recompute.label}, v {plan.layout.virtual}"
    times = [(time.seconds, layout) for time, layout in found.candidates if is_mesh(layout, row["layout"])]
    if not times:
        return "not legal, or its states alone exceed the card"
    if not found.plans:
        return "nothing fits at the upper end of the interval"
    return f"not among the first {len(found.plans)} meshes: the fastest of it is {times[0][0] / found.plans[0].seconds - 1:+.1%}; {why(found, times)}"


def why(found: Found, times: list[tuple[float, Layout]]) -> str:
    """Whether the mesh has a layout that fits."""
    for seconds, layout in times:
        if found.memory.leaner_fit(layout) and found.memory.fits(layout):
            return f"the first that fits {seconds / found.plans[0].seconds - 1:+.1%} ({layout.recompute.label})"
    return "none of it fits at the upper end of the interval"


def main() -> None:
    """Prints one line a row."""
    path, *wanted = sys.argv[1:]
    for row in map(json.loads, Path(path).read_text().splitlines()):
        if wanted and row["id"] not in wanted:
            continue
        try:
            told = verdict(row, search(asked_of(row), Rent(None), top=TOP))
        except EverybyteError as refused:
            told = f"refused: {refused}"
        print(f"{row['id']:28} {told}", flush=True)


if __name__ == "__main__":
    main()
