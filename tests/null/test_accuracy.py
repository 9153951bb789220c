"""Predicted against measured: errors, their summary, and the command that shows them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from made_answers import answer, rank

from everybyte.basics.errors import BadInput
from everybyte.cli.app import run
from everybyte.ledger.answer import Answer
from everybyte.measure.accuracy import Comparison, Wanted, compare, quantile, relative_error, select, summarise, summary_of

EVERYTHING = Wanted(lambda _: True, lambda _: True)
PEAK = rank().figures["peak.allocated"]


def record(figure: str = "peak.allocated", value: float = PEAK, group: str = "g", **changes: Any) -> dict[str, Any]:
    measured = {"figure": figure, "rank": "any", "value": value, "unit": "bytes", "resolution": 0, **changes}
    return {"id": "r", "group": group, "job": {}, "measured": [measured]}


def single(asked: dict[str, Any], predicted: Answer) -> Comparison:
    (comparison,) = compare(asked, EVERYTHING, lambda _: predicted)
    return comparison


@pytest.mark.parametrize(
    ("predicted", "measured", "slack", "error"),
    [(110, 100, 0, 0.1), (90, 100, 0, -0.1), (104, 100, 5, 0.0), (110, 100, 5, 0.05), (90, 100, 5, -0.05), (5, 0, 0, 0.0)],
)
def test_relative_error(predicted: float, measured: float, slack: float, error: float) -> None:
    """The error is relative to what was measured, beyond the half step of the printed figure."""
    assert relative_error(predicted, measured, slack) == pytest.approx(error)


def test_quantile_interpolates() -> None:
    """Quantiles lie between neighbours; of one value they are that value."""
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([0.0, 1.0], 0.9) == pytest.approx(0.9)
    assert quantile([7.0], 0.9) == 7.0


def test_range_and_resolution() -> None:
    """A measured value counts as inside the stated range if it lies there within its rounding."""
    assert single(record(), answer()).inside is True
    assert single(record(value=PEAK * 1.2), answer()).inside is False
    assert single(record(value=PEAK * 1.2, resolution=PEAK), answer()).inside is True
    assert single(record(), answer(range={})).inside is None


def test_ranks() -> None:
    """The last pipeline stage has its own figures, and a sum is over all GPUs; a measurement of one named device is not compared."""
    made = answer(ranks=(rank("pp0", stage=0, extra=2**30), rank("pp1", stage=1)))
    assert single(record(rank="last_stage"), made).predicted == PEAK
    assert single(record(rank="max"), made).predicted == PEAK + 2**30
    assert single(record(rank="sum"), made).predicted == 2 * PEAK + 2**30
    assert compare(record(rank="CUDA3"), EVERYTHING, lambda _: made) == []


def test_unanswered() -> None:
    """A refused job and a missing figure count as asked and not as answered, with the reason."""

    def refuse(_: dict[str, Any]) -> Answer:
        raise BadInput("model", "unknown")

    (refused,) = compare(record(), EVERYTHING, refuse)
    missing = single(record("kv.pool"), answer())
    assert refused.unanswered == "model: unknown"
    assert missing.unanswered is not None
    summary = summary_of("g", "f", [refused, missing, single(record(), answer())])
    assert (summary.asked, summary.answered, summary.median, summary.bias) == (3, 1, 0.0, 0.0)
    assert summary_of("g", "f", [refused]).median is None


def test_summaries_by_group_and_figure() -> None:
    """One summary for each group and figure; bias keeps the sign that median and p90 lose."""
    comparisons = [single(record(value=PEAK / (1 + error), group=group), answer()) for group, error in (("b", 0.1), ("a", 0.2), ("a", -0.2))]
    first, second = summarise(comparisons)
    assert (first.group, second.group) == ("a", "b")
    assert first.median == pytest.approx(0.2)
    assert first.bias == pytest.approx(0.0)


def test_select() -> None:
    """Records are chosen by group and by having one of the figures."""
    records = [record(group="a"), record("kv.pool", group="a"), record(group="b")]
    assert select(records, Wanted(lambda group: group == "a", lambda figure: figure == "kv.pool")) == [records[1]]


def test_truth_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped records of one group are answered, beside the textbook, as a table and as JSON."""
    args = ["truth", "--group", "vramcalc", "--figure", "peak.allocated"]
    assert run([*args, "--against", "textbook", "--worst", "3"]) == 0
    out = capsys.readouterr().out
    assert "vramcalc" in out
    assert "textbook" in out
    assert run([*args, "--json", "--worst", "1"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["all"]["answered"] == line["groups"][0]["answered"] > 0
    assert len(line["comparisons"]) == line["all"]["asked"]
    assert line["all"]["median"] < 0.05


@pytest.mark.parametrize(("option", "words"), [("(", "not a regular expression"), ("nothing-is-called-so", "no record matches")])
def test_truth_refusals(option: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A broken pattern and one that finds nothing are bad input."""
    assert run(["truth", "--group", option]) == 2
    assert words in capsys.readouterr().err


def test_the_shipped_table_is_what_a_new_estimate_says(capsys: pytest.CaptureFixture[str]) -> None:
    """`truth` reads the table of the release; estimating the same records anew gives the same errors. (`make docs` writes the table.)"""
    args = ["truth", "--group", "vramcalc", "--against", "textbook", "--json", "--worst", "1"]
    assert run(args) == 0
    read = json.loads(capsys.readouterr().out)
    assert run([*args, "--recompute"]) == 0
    computed = json.loads(capsys.readouterr().out)
    assert read["groups"] == [
        {**row, **{key: pytest.approx(row[key], rel=0.005) for key in ("median", "p90", "bias", "width") if row[key] is not None}} for row in computed["groups"]
    ]
    assert [(row["id"], row["predicted"]) for row in read["comparisons"]] == [(row["id"], row["predicted"]) for row in computed["comparisons"]]
