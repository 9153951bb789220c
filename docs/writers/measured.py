"""All measured runs, answered once for all pages that tell of them."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from everybyte.cli.truth import predict_by_textbook
from everybyte.estimator import estimate
from everybyte.ledger.answer import Answer
from everybyte.measure.accuracy import Comparison, Wanted, compare
from everybyte.measure.truth import load_records
from writers.calibrated import Row, rows_of


class Measured(NamedTuple):
    """Predicted against measured, and which figures the answers of each framework or engine have."""

    records: int
    comparisons: tuple[Comparison, ...]
    serving: frozenset[str]
    """Groups of serving."""
    figures: dict[str, frozenset[str]]
    textbook: tuple[Comparison, ...]
    """The same by the textbook equations."""
    calibrated: tuple[Row, ...]
    """Rows that are fitted to measured runs."""


@cache
def measured() -> Measured:
    """Takes about twenty seconds."""
    records = list(load_records())
    figures: dict[str, set[str]] = {}
    calibrated: set[Row] = set()

    def predict(job: dict[str, Any]) -> Answer:
        answer = estimate(job)
        part = job.get("train") or job["serve"]
        calibrated.update(rows_of(job["name"], "train" if "train" in job else "serve", answer))
        figures.setdefault(part.get("framework") or part.get("engine"), set()).update(answer.figures)
        return answer

    everything = Wanted(lambda _: True, lambda _: True)
    named = ({**record, "job": {**record["job"], "name": record["id"]}} for record in records)
    comparisons = tuple(row for record in named for row in compare(record, everything, predict))
    serving = frozenset(record["group"] for record in records if "serve" in record["job"])
    by_textbook = tuple(row for record in records for row in compare(record, everything, predict_by_textbook))
    return Measured(
        len(records), comparisons, serving, {name: frozenset(found) for name, found in figures.items() if name}, by_textbook, tuple(sorted(calibrated))
    )
