"""Answers as JSON, in exactly the contract's form (section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.basics.origin import Setting
from everybyte.basics.version import __version__
from everybyte.ledger.answer import SCHEMA, Answer, RankAnswer
from everybyte.ledger.entry import Entry

if TYPE_CHECKING:
    from everybyte.measure.accuracy import Comparison, Summary
    from everybyte.plan.fit import FitResult
    from everybyte.plan.formats import FormatResult
    from everybyte.plan.share import ShareResult
    from everybyte.report.differences import Difference
    from everybyte.textbook.formula import Formula


def head(name: str | None) -> dict[str, Any]:
    """The first keys of every object that a command prints."""
    return {"everybyte": __version__, "schema": SCHEMA, "name": name or ""}


def answer_object(answer: Answer) -> dict[str, Any]:
    """The answer with the contract's keys in the contract's order; settings as key, value, origin."""
    return {
        **head(answer.name),
        "job": answer.job,
        "settings": [setting._asdict() for setting in answer.settings],
        "model": answer.model,
        "hardware": answer.hardware,
        "fits": answer.fits,
        "verdict": answer.verdict,
        "chance": answer.chance,
        "headroom": answer.headroom,
        "figures": answer.figures,
        "range": answer.range,
        "time": answer.time,
        "ranks": answer.ranks,
        "host": answer.host,
        "assumptions": answer.assumptions,
        "warnings": answer.warnings,
        "caveats": answer.caveats,
        "advice": answer.advice,
    }


def error_object(name: str | None, error: BadInput) -> dict[str, Any]:
    """The line of a job that cannot be answered."""
    return {"name": name or "", "error": {"path": error.path, "message": error.message}}


def explanation_object(answer: Answer, rank: RankAnswer, entries: Sequence[Entry], setting: Setting[Any] | None) -> dict[str, Any]:
    """Rows of a ledger with the numbers put into their formulas; or one setting with its origin."""
    if setting is not None:
        return {**head(answer.name), "setting": setting._asdict()}
    rows = [{**msgspec.to_builtins(entry), "numbers": entry.numbers()} for entry in entries]
    return {**head(answer.name), "rank": rank.label, "peak_phase": rank.peak_phase, "rows": rows}


def differences_object(here: RankAnswer, there: RankAnswer, rows: Sequence[Difference]) -> dict[str, Any]:
    """What differs between two kinds of rank, each at its peak."""
    ranks = [{"rank": r.label, "peak_phase": r.peak_phase, "allocated": r.figures["peak.allocated"]} for r in (here, there)]
    found = [{**row._asdict(), "more": row.more} for row in rows]
    return {"everybyte": __version__, "schema": SCHEMA, "rank": ranks[0], "against": ranks[1], "differences": found}


def fit_object(name: str | None, result: FitResult, advice: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The result of a search for the largest or smallest value, with what would make it fit where nothing does."""
    answer = result.answer
    return {
        **head(name),
        "key": result.key,
        "smallest": result.smallest,
        "fits": result.value is not None,
        "value": result.value,
        "unlimited": result.unlimited,
        "advice": advice,
        "limit": result.limit,
        "is_complete": result.is_complete,
        "headroom": answer.headroom if answer else None,
        "figures": answer.figures if answer else None,
        "stop": result.stop,
        "holes": result.holes,
        "tried": result.tried,
    }


def share_object(name: str | None, result: ShareResult) -> dict[str, Any]:
    """The result of a search for the values of a share that work."""
    shown = {key: getattr(result, key) for key in ("intervals", "below", "above", "tried")}
    return {**head(name), "key": result.key, "fits": bool(result.intervals), **shown}


def format_object(name: str | None, result: FormatResult) -> dict[str, Any]:
    """The result of a search for the widest format of weights."""
    answer = result.answer
    return {
        **head(name),
        "key": result.key,
        "fits": result.value is not None,
        "value": result.value,
        "headroom": answer.headroom if answer else None,
        "figures": answer.figures if answer else None,
        "trials": result.trials,
        "tried": len(result.trials),
    }


def formula_object(formula: Formula, values: dict[str, int], result: int | None) -> dict[str, Any]:
    """A formula of the book; with values also its result."""
    shown = {field: value for field, value in formula._asdict().items() if field not in ("function", "citation")}
    source = {"source": str(formula.citation)}
    return {**shown, **source} if result is None else {**shown, **source, "values": values, "result": result}


def truth_object(found: Sequence[Comparison], textbook: Sequence[Summary] | None, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Errors by group and figure, of all, and of the sources that no rule was read off; single comparisons where they are asked for."""
    from everybyte.measure.accuracy import fresh_of, summarise, summary_of  # most lines of JSON need no statistics

    sums = {"groups": summarise(found), "all": summary_of("all", "", found), "fresh": fresh_of(found)}
    return {**head("truth"), **sums, "textbook": textbook, "comparisons": comparisons}


def line(thing: object) -> str:
    """One line of JSON; structs become objects and tuples become lists."""
    return msgspec.json.encode(thing).decode()
