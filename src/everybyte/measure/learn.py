"""Learns the intervals of answers from the measured runs: `python -m everybyte.measure.learn` writes catalog/data/ranges.json.

Runs of one group share their machine, their script and often their faults, so each group counts once, however many rows it has. An interval
is made as wide as it must be to hold 9 of 10 runs when it is learnt without the group that they belong to: what a new kind of run meets is a
table that never saw it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from everybyte.basics.errors import Unsupported
from everybyte.catalog.ranges import kinds
from everybyte.engines.registry import folder_of, runs_on_several
from everybyte.estimator import estimate
from everybyte.job import read_job
from everybyte.measure.accuracy import Comparison, Wanted, compare
from everybyte.measure.truth import load_records

EXPECTED = 0.9
"""A stated range holds this share of measured values."""
SHARES = (0.9, 0.95, 0.98, 1.0)
FEWEST_GROUPS = 2
ENOUGH_GROUPS = 8
TARGET = Path(__file__).parents[1] / "catalog" / "data" / "ranges.json"
Residuals = dict[str, list[float]]
"""group -> measured over predicted."""


def residuals() -> dict[tuple[str, str], Residuals]:
    """(figure, kind) -> residuals by group, over all records that are answered."""
    found: dict[tuple[str, str], Residuals] = {}
    wanted = Wanted(lambda _: True, lambda _: True)
    for record in load_records():
        try:
            job = read_job(record["job"])
            section, engine = folder_of(job)
        except Unsupported:
            continue
        for row in compare(record, wanted, estimate):
            ratio = _ratio(row)
            if ratio is None:
                continue
            for kind in kinds(section, engine, runs_on_several(job)):
                found.setdefault((row.figure, kind), {}).setdefault(row.group, []).append(ratio)
    return found


def _ratio(row: Comparison) -> float | None:
    """Measured over predicted, where the rounding of the printed figure does not already cover the difference."""
    if not row.predicted or row.error is None or row.measured <= 0:
        return None
    return 1.0 if row.error == 0 else row.measured / row.predicted


def quantiles(groups: Residuals, share: float) -> tuple[float, float]:
    """The middle `share` of the residuals, each group with the same weight; an interval always holds the prediction itself."""
    weighted = sorted((value, 1 / len(values)) for values in groups.values() for value in values)
    whole = sum(weight for _, weight in weighted)
    tail = (1 - share) / 2 * whole

    def at(position: float) -> float:
        seen = 0.0
        for value, weight in weighted:
            seen += weight
            if seen >= position:
                return value
        return weighted[-1][0]

    return min(at(tail), 1.0), max(at(whole - tail), 1.0)


def learn(groups: Residuals) -> tuple[float, float] | None:
    """The interval of a kind, or None where there are too few groups to test it on one that was left out.

    The narrowest of SHARES that would have held 9 of 10 runs when learnt without their group; all residuals if none does.
    """
    if len(groups) < FEWEST_GROUPS:
        return None
    share = next((s for s in SHARES if _coverage(groups, s) >= EXPECTED), SHARES[-1])
    return quantiles(groups, share)


def _coverage(groups: Residuals, share: float) -> float:
    """Share of all runs that lie inside the interval that was learnt without their group."""
    inside = total = 0
    for name, values in groups.items():
        low, high = quantiles({k: v for k, v in groups.items() if k != name}, share)
        inside += sum(low <= v <= high for v in values)
        total += len(values)
    return inside / total


def table(found: Iterable[tuple[tuple[str, str], Residuals]]) -> dict[str, dict[str, dict[str, Any]]]:
    """figure -> kind -> interval with the number of runs and groups behind it.

    A close kind with few groups may need all that was ever seen; where the wider kind that it belongs to is narrower, that one is taken. Enough
    groups speak for themselves.
    """
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for (figure, kind), groups in sorted(found):
        interval = learn(groups)
        wider = rows.get(figure, {}).get(kind.partition("/")[0])
        few = len(groups) < ENOUGH_GROUPS
        if interval is None or (few and wider is not None and interval[1] - interval[0] > wider["high"] - wider["low"]):
            continue
        runs = sum(len(v) for v in groups.values())
        rows.setdefault(figure, {})[kind] = {"low": round(interval[0], 4), "high": round(interval[1], 4), "runs": runs, "groups": len(groups)}
    return rows


def main() -> None:
    """Writes the table."""
    TARGET.write_text(json.dumps(table(residuals().items()), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
