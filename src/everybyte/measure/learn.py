"""Learns the intervals of answers from the measured runs: `python -m everybyte.measure.learn` writes catalog/data/ranges.json.

An interval is made as wide as it must be to hold 9 of 10 runs when it is learnt without the source that they belong to (`spreads`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from everybyte.catalog.ranges import Kind
from everybyte.measure.residuals import Residual, residuals
from everybyte.measure.spreads import Target, fitted_scale, left_out, shortest, weighted

EXPECTED = 0.9
"""A stated range holds this share of measured values."""
LEVELS = tuple(level / 100 for level in range(60, 101, 2))
"""Shares of the known residuals that an interval may be made to hold, so that it holds EXPECTED of those that it does not know."""
FEWEST_SOURCES = 2
DIGITS = 5
TARGET = Path(__file__).parents[1] / "catalog" / "data" / "ranges.json"

HOLDS = {"peak.device": ("peak.reserved",)}
"""What a figure holds: where few runs measure it, runs that measured its largest part say how far it can be off. Few sources read nvidia-smi."""

Table = dict[str, dict[str, Any]]


def table(found: Iterable[Residual]) -> dict[str, Table]:
    """section -> figure -> its scale, how many of the runs were held when their source was left out, and the interval of each kind of job."""
    by_figure: dict[tuple[str, str], list[Residual]] = {}
    for row in found:
        by_figure.setdefault((row.kind.section, row.figure), []).append(row)
    rows: dict[str, Table] = {}
    for (section, figure), own in sorted(by_figure.items()):
        if len({row.source for row in own}) >= FEWEST_SOURCES:
            parts = [row for name in HOLDS.get(figure, ()) for row in by_figure.get((section, name), [])]
            rows.setdefault(section, {})[figure] = learn(own, [*own, *parts])
    return rows


def learn(own: Sequence[Residual], rows: Sequence[Residual]) -> dict[str, Any]:
    """The entry of a figure: `own` are its residuals, `rows` these and those of the parts that tell of it."""
    figure = own[0].figure
    shares = fitted_scale(own)
    held = {level: left_out(rows, figure, level, shares) for level in LEVELS}
    level = min(LEVELS, key=lambda level: abs(held[level].between - EXPECTED))
    return {
        "scale": shares,
        "held": {"rows": round(held[level].of_rows, 3), "sources": round(held[level].of_sources, 3)},
        "kinds": {key: _interval(rows, Target(figure, kind), shares, level) for key, kind in _kinds(rows).items()},
    }


def _kinds(rows: Sequence[Residual]) -> dict[str, Kind]:
    """Key of the table -> the kinds that runs tell of, and of each the one whose engine none tells of."""
    known = {row.kind for row in rows}
    known |= {kind._replace(engine="") for kind in known} | {kind._replace(engine="", several=False, offloads=False) for kind in known}
    return {kind.keys[0 if kind.engine else 1]: kind for kind in sorted(known)}


def _interval(rows: Sequence[Residual], target: Target, shares: dict[str, float], level: float) -> dict[str, Any]:
    """The interval of a kind of job, in scales, with the runs and sources behind it: its own, or all where there are none."""
    low, high = shortest(weighted(rows, target, shares), level)
    like = [row for row in rows if row.figure == target.figure and row.kind == target.kind] or rows
    return {"low": round(low, DIGITS), "high": round(high, DIGITS), "runs": len(like), "groups": len({row.source for row in like})}


def main() -> None:
    """Writes the table."""
    TARGET.write_text(json.dumps(table(residuals()), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
