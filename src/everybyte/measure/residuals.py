"""What measured runs say about predictions: by how much each measured figure differs from the predicted one, and what the difference can come from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from everybyte.basics.errors import Unsupported
from everybyte.catalog.ranges import Kind, parts_of
from everybyte.engines.registry import kind_of
from everybyte.estimator import estimate
from everybyte.job import read_job
from everybyte.ledger.answer import Answer
from everybyte.measure.accuracy import Comparison, Wanted, compare
from everybyte.measure.truth import load_records

EVERYTHING = Wanted(lambda _: True, lambda _: True)
COLLECTIONS = frozenset({"public", "github", "https", "pypi", "vllm"})
"""First words of a source that only say where it lies: each file, thread or package there is a source of its own."""
OWNER = re.compile(r"[@\s,:(]")
THREAD = re.compile(r"(?i)\b(?:PR|pull|issue)s?\D{0,3}(\d+)")


class Residual(NamedTuple):
    """One measured figure beside its prediction, both in the figure's unit (bytes, tokens, pages)."""

    figure: str
    kind: Kind
    source: str
    difference: float
    """Measured minus predicted, less the half step that the printed figure was rounded by."""
    parts: Mapping[str, float]
    """What an error of this figure can come from (`catalog.ranges.parts_of`)."""


def source_of(record: Mapping[str, Any]) -> str:
    """Who measured: a repository, or a thread in it. Runs of one source share machine, script and often their faults."""
    text = str(record["source"]).strip()
    owner = OWNER.split(text)[0].lower()
    if owner in COLLECTIONS:
        return text
    thread = THREAD.search(text)
    return f"{owner} {thread[1]}" if thread else owner


def residuals(records: Iterable[Mapping[str, Any]] | None = None) -> Iterator[Residual]:
    """All figures that are answered, of the records that ship with the package unless others are given."""
    for record in load_records() if records is None else records:
        try:
            job = read_job(record["job"])
            kind = kind_of(job)
            answer = estimate(job)
        except Unsupported:
            continue
        yield from _of_answer(record, kind, answer)


def _of_answer(record: Mapping[str, Any], kind: Kind, answer: Answer) -> Iterator[Residual]:
    for row in compare(record, EVERYTHING, lambda _: answer):
        if row.predicted and row.error is not None:
            yield Residual(row.figure, kind, source_of(record), difference(row), parts_of(row.figure, row.predicted, answer.figures))


def difference(row: Comparison) -> float:
    """Measured minus predicted beyond the rounding of the printed figure."""
    assert row.error is not None
    return -row.error * row.measured
