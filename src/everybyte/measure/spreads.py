"""The interval of a figure, learnt from residuals: how large its errors are apt to be, and which share of measured runs lies within how many of them.

An error of 300 MiB is much for a small job and nothing for a large one, and a cache takes up the errors of all that is subtracted before it. So a
residual is measured in units of the job's own *scale*: the sum of what an error can come from (`catalog.ranges.parts_of`), each part with its share.
The shares are those under which the residuals are likeliest, taken as Cauchy distributed, because a few runs always differ by far more than the rest.

Rows of one source are often alike, so a source counts as the square root of its rows: more than one of a single log, less than so many. Runs of the
job's own engine on as many GPUs count most (`FAR`), the others less: what a new kind of run meets is a table that never saw it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from math import log, log1p, sqrt
from typing import NamedTuple

from everybyte.catalog.ranges import Kind, scale_of
from everybyte.measure.residuals import Residual

SHARES = (0.0, 0.0005, 0.001, 0.003, 0.006, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6)
"""The error of a part as a share of it: what is tried."""
FAR = 0.3
"""What a source counts for each of these that differs: the figure, the engine, one GPU or several, offloading."""
SWEEPS = 6


class Target(NamedTuple):
    """What an interval is for."""

    figure: str
    kind: Kind


class Coverage(NamedTuple):
    """(values inside, all values) of each source."""

    sources: tuple[tuple[int, int], ...]

    @property
    def of_rows(self) -> float:
        """Share of all values."""
        return sum(inside for inside, _ in self.sources) / sum(count for _, count in self.sources)

    @property
    def of_sources(self) -> float:
        """Mean over sources."""
        return sum(inside / count for inside, count in self.sources) / len(self.sources)

    @property
    def between(self) -> float:
        """Between the two: a source counts as the square root of its rows."""
        return sum(inside / sqrt(count) for inside, count in self.sources) / sum(sqrt(count) for _, count in self.sources)


Weighted = Sequence[tuple[float, float]]
"""(residual in units of the scale, weight), in rising order."""


def fitted_scale(rows: Sequence[Residual]) -> dict[str, float]:
    """The share of each part under which the residuals are likeliest, by sweeps over the parts; parts that add nothing are left out."""
    names = sorted({name for row in rows for name in row.parts})
    counts = Counter(row.source for row in rows)
    shares = dict.fromkeys(names, 0.01)

    def unlikely(tried: Mapping[str, float]) -> float:
        total = 0.0
        for row in rows:
            scale = scale_of(row.parts, tried)
            total += (log(scale) + log1p((row.difference / scale) ** 2)) / counts[row.source]
        return total

    for _ in range(SWEEPS):
        before = dict(shares)
        for name in names:
            shares[name] = min((unlikely({**shares, name: share}), share) for share in SHARES)[1]
        if shares == before:
            break
    return {name: share for name, share in shares.items() if share}


def weighted(rows: Sequence[Residual], target: Target, shares: Mapping[str, float]) -> Weighted:
    """The residuals with what each counts for the target."""
    counts = Counter((row.source, row.figure) for row in rows)

    def weight(row: Residual) -> float:
        differences = (row.figure != target.figure) + sum(a != b for a, b in zip(row.kind, target.kind, strict=True))
        return float(FAR**differences / sqrt(counts[row.source, row.figure]))

    return sorted((row.difference / scale_of(row.parts, shares), weight(row)) for row in rows)


def shortest(residuals: Weighted, share: float) -> tuple[float, float]:
    """The shortest interval that holds this share of the weight and zero, the prediction itself."""
    sums = [0.0, *accumulate(weight for _, weight in residuals)]
    needed = share * sums[-1] * (1 - 1e-9)
    found = min(residuals[0][0], 0.0), max(residuals[-1][0], 0.0)
    for first, (value, _) in enumerate(residuals):
        last = bisect_left(sums, sums[first] + needed) - 1
        if last >= len(residuals):
            break
        ends = min(value, 0.0), max(residuals[last][0], 0.0)
        found = min(found, ends, key=lambda pair: pair[1] - pair[0])
    return found


def left_out(rows: Sequence[Residual], figure: str, share: float, shares: Mapping[str, float]) -> Coverage:
    """Which measured values of a figure lie in an interval that was learnt without their source."""

    @cache
    def learnt(source: str, target: Target) -> tuple[float, float]:
        return shortest(weighted([row for row in rows if row.source != source], target, shares), share)

    held: dict[str, list[bool]] = {}
    for row in rows:
        if row.figure == figure:
            low, high = learnt(row.source, Target(figure, row.kind))
            held.setdefault(row.source, []).append(low <= row.difference / scale_of(row.parts, shares) <= high)
    return Coverage(tuple((sum(inside), len(inside)) for inside in held.values()))
