"""Measured results as truth records (contract, section 4), and the table of predicted against measured."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jobs import Measured

Fields = dict[str, Any]
FIGURES = ("static.allocated", "weights", "peak.allocated", "peak.reserved", "peak.device")
MIB_FIGURE = 2**20
"""nvidia-smi prints whole MiB."""


def slug(name: str) -> str:
    """`NVIDIA H200` -> `nvidia-h200`."""
    return re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")


def record(measured: Measured, result: Fields) -> Fields:
    """The truth record of a job that ran."""
    env = result["environment"]
    versions = ", ".join(f"{name} {number}" for name, number in env["versions"].items())
    job = {**measured.job, "hardware": hardware(env), "env": {"driver": env["driver"]}}
    if env["alloc_conf"]:
        job["env"]["alloc_conf"] = env["alloc_conf"]
    section = "train" if "train" in job else "serve"
    job[section] = {**job[section], "version": versions}
    return {
        "id": f"own-{slug(env['gpu'])}-{measured.name}",
        "group": measured.group,
        "source": "tests/gpu/measure.py of this project",
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "job": job,
        "measured": [
            {"figure": name, "rank": "any", "value": result["figures"][name], "unit": "bytes", "resolution": MIB_FIGURE if name == "peak.device" else 1}
            for name in FIGURES
            if name in result["figures"]
        ],
        # without nvidia-smi only the use of the whole card is known
        "completeness": "B" if result["device_by"].startswith("mem_get_info") else "A",
        "note": f"{env['gpu']}, driver {env['driver']}, CUDA {env['cuda']}, {versions}; random weights; peak.allocated of the third step (training) or "
        f"the second run (inference); peak.device by {result['device_by']}",
    }


def hardware(env: Fields) -> Fields:
    """The card by its name if the catalogue has it, else by its memory."""
    try:
        from everybyte.basics.errors import BadInput
        from everybyte.catalog.gpus import find_gpu

        find_gpu(env["gpu"], "hardware.gpu")
    except ImportError:
        pass
    except BadInput:
        return {"gpu": {"name": env["gpu"], "memory_bytes": env["memory_bytes"]}, "gpus": 1}
    return {"gpu": env["gpu"], "gpus": 1}


def write(path: Path, records: Iterable[Fields]) -> None:
    """Writes the records, newest measurement of each id; others that the file holds stay."""
    found = {r["id"]: r for r in read(path)} | {r["id"]: r for r in records}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in found.values()), encoding="utf-8")


def read(path: Path) -> list[Fields]:
    """The records of a file, none if it is not there."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()] if path.exists() else []


def table(records: list[Fields]) -> list[str]:
    """Lines of the table: each figure of each record in GiB with its error, then a summary by kind of run."""
    from everybyte import estimate
    from everybyte.measure.accuracy import Wanted, compare, summarise

    wanted = Wanted(lambda _: True, lambda figure: figure in FIGURES)
    rows = [row for r in records for row in compare(r, wanted, estimate)]
    lines = [f"{'job':44} {'figure':18} {'measured':>10} {'predicted':>10} {'error':>8}"]
    for row in rows:
        name, measured = row.id.removeprefix("own-"), row.measured / 2**30
        if row.predicted is None or row.error is None:
            lines.append(f"{name:44} {row.figure:18} {measured:10.3f} {row.unanswered}")
        else:
            lines.append(f"{name:44} {row.figure:18} {measured:10.3f} {row.predicted / 2**30:10.3f} {row.error:+8.2%}")
    lines += ["", f"{'kind of run':44} {'figure':18} {'runs':>10} {'median':>10} {'p90':>8} {'bias':>8}"]
    for s in summarise(rows):
        if s.median is not None and s.p90 is not None and s.bias is not None:
            lines.append(f"{s.group:44} {s.figure:18} {s.answered:10} {s.median:10.2%} {s.p90:8.2%} {s.bias:+8.2%}")
    return lines
