"""How far predictions lie from measurements: errors of single figures, and their summary by kind of run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from everybyte.basics.errors import EverybyteError
from everybyte.ledger.answer import Answer

COMPARABLE_RANKS = frozenset({None, "max", "any", "last_stage", "sum"})
"""Ranks of a measurement that an answer has a figure for; others name a single device of a log."""

Record = Mapping[str, Any]
"""A measured configuration (contract, section 4)."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one record. `error` is (predicted - measured) / measured beyond the rounding of the printed figure; None where nothing was predicted."""

    id: str
    group: str
    figure: str
    measured: int | float
    predicted: int | float | None = None
    error: float | None = None
    inside: bool | None = None
    """Whether the measured value lies in the stated range; None where no range is stated."""
    width: float | None = None
    """Width of the stated range as a share of the predicted value."""
    completeness: str = ""
    """`A` if every setting of the run is known, `B` if one is a best guess."""
    fresh: bool = False
    """The source came after the rules, and none was read off it."""
    unanswered: str | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of one group and figure. Shares and errors are fractions."""

    group: str
    figure: str
    asked: int
    answered: int
    median: float | None = None
    p90: float | None = None
    bias: float | None = None
    inside: float | None = None
    """Share of the measured values in the stated range."""
    width: float | None = None
    """Median width of the range as a share of the predicted value."""


class Wanted(NamedTuple):
    """Which figures of which records to compare."""

    group: Callable[[str], bool]
    figure: Callable[[str], bool]


def select(records: Iterable[Record], wanted: Wanted) -> list[Record]:
    """The records of the groups that have at least one of the figures."""
    return [r for r in records if wanted.group(r["group"]) and any(wanted.figure(m["figure"]) for m in r["measured"])]


def compare(record: Record, wanted: Wanted, predict: Callable[[dict[str, Any]], Answer]) -> list[Comparison]:
    """The wanted figures of one record, predicted and measured. A job that the product refuses is unanswered, with the reason. A figure off which a setting
    of the job was read (`read_off`) is no evidence and left out."""
    read_off = record.get("read_off", ())
    measured = [m for m in record["measured"] if wanted.figure(m["figure"]) and m.get("rank") in COMPARABLE_RANKS and m["figure"] not in read_off]
    try:
        answer = predict(record["job"])
    except EverybyteError as error:
        return [_unanswered(record, m, str(error)) for m in measured]
    return [_compare_figure(record, m, answer) for m in measured]


def _unanswered(record: Record, measurement: Mapping[str, Any], reason: str) -> Comparison:
    return Comparison(
        id=record["id"],
        group=record["group"],
        figure=measurement["figure"],
        measured=measurement["value"],
        completeness=record.get("completeness", ""),
        fresh=record.get("fresh", False),
        unanswered=reason,
    )


def _compare_figure(record: Record, measurement: Mapping[str, Any], answer: Answer) -> Comparison:
    name, value = measurement["figure"], measurement["value"]
    predicted = _predicted(answer, name, measurement.get("rank"))
    if predicted is None:
        return _unanswered(record, measurement, f"the answer has no figure {name}")
    slack = (measurement.get("resolution") or 0) / 2
    low, high = answer.range.get(name, (None, None))
    if low is not None and high is not None and answer.figures.get(name):
        # the stated range is that of the worst rank; another's is as wide in proportion
        low, high = (end * predicted / answer.figures[name] for end in (low, high))
    return Comparison(
        id=record["id"],
        group=record["group"],
        figure=name,
        measured=value,
        predicted=predicted,
        error=relative_error(predicted, value, slack),
        inside=None if low is None or high is None else low - slack <= value <= high + slack,
        width=None if low is None or high is None or not predicted else abs((high - low) / predicted),
        completeness=record.get("completeness", ""),
        fresh=record.get("fresh", False),
    )


def _predicted(answer: Answer, name: str, rank: str | None) -> float | None:
    if rank == "last_stage":
        last = max(answer.ranks, key=lambda r: r.stage)
        if name in last.figures:
            return last.figures[name]
    if rank == "sum" and all(name in r.figures for r in answer.ranks):
        return sum(r.gpus * r.figures[name] for r in answer.ranks)
    return answer.figures.get(name)


def relative_error(predicted: float, measured: float, slack: float) -> float:
    """(predicted - measured) / measured, less the half step that the measured figure was rounded by."""
    difference = predicted - measured
    if abs(difference) <= slack or not measured:
        return 0.0
    return (difference - slack if difference > 0 else difference + slack) / measured


def summarise(comparisons: Sequence[Comparison]) -> list[Summary]:
    """One summary for each group and figure, in alphabetical order."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault((comparison.group, comparison.figure), []).append(comparison)
    return [summary_of(group, figure, groups[group, figure]) for group, figure in sorted(groups)]


def fresh_of(comparisons: Sequence[Comparison]) -> Summary | None:
    """All figures of sources that no rule was read off, or None where there are none."""
    found = [c for c in comparisons if c.fresh]
    return summary_of("fresh sources", "", found) if found else None


def summary_of(group: str, figure: str, comparisons: Sequence[Comparison]) -> Summary:
    """Median and 90th percentile of |error|, bias (mean error), the share inside the stated range, and its median width."""
    errors = [c.error for c in comparisons if c.error is not None]
    if not errors:
        return Summary(group=group, figure=figure, asked=len(comparisons), answered=0)
    inside = [c.inside for c in comparisons if c.inside is not None]
    widths = [c.width for c in comparisons if c.width is not None]
    sizes = [abs(error) for error in errors]
    return Summary(
        group=group,
        figure=figure,
        asked=len(comparisons),
        answered=len(errors),
        median=quantile(sizes, 0.5),
        p90=quantile(sizes, 0.9),
        bias=statistics.fmean(errors),
        inside=sum(inside) / len(inside) if inside else None,
        width=statistics.median(widths) if widths else None,
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The quantile with linear interpolation between neighbours."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * share
    below = int(position)
    if below + 1 >= len(ordered):
        return ordered[below]
    return ordered[below] + (ordered[below + 1] - ordered[below]) * (position - below)
