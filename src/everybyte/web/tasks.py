"""The answers themselves: one function a route, from the bytes of a request to the bytes of an answer. They run in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from everybyte.basics.errors import BadInput
from everybyte.job import Job, job_to_text, read_job
from everybyte.job.plain import join
from everybyte.ledger.answer import Answer
from everybyte.report import as_json
from everybyte.report.find import find_entries, find_rank, find_setting
from everybyte.report.language import speaking
from everybyte.report.palette import Theme
from everybyte.report.tex import tex, tex_numbers
from everybyte.web.bodies import mapping, read
from everybyte.web.forms import PICTURES, ChartsAsked, CompareAsked, ExplainAsked, FitAsked, JobAsked, MeasuredAnswer, MeasuredAsked, ReportAsked, Spec
from everybyte.web.logs import doctor, figures, snapshot
from everybyte.web.planning import export, hardware, plan
from everybyte.web.replies import HTML, Reply


def estimate(body: bytes) -> bytes:
    """What `everybyte estimate --json` prints for the job."""
    return _line(as_json.answer_object(_answer(read_job(mapping(body)), advise=True)))


def explain(body: bytes) -> bytes:
    """What `everybyte explain --json` prints, with the formulas as TeX."""
    asked = read(body, ExplainAsked)
    answer = _answer(read_job(asked.job))
    rank = find_rank(answer, asked.rank, "rank")
    setting = find_setting(answer, asked.entry) if asked.entry else None
    entries = rank.ledger if asked.entry is None else () if setting else find_entries(rank, asked.entry)
    found = as_json.explanation_object(answer, rank, entries, setting)
    for row, entry in zip(found.get("rows", ()), entries, strict=True):
        row["tex"], row["tex_numbers"] = tex(entry.formula), tex_numbers(entry.formula, entry.symbols)
    return _line(found)


def fit(body: bytes) -> bytes:
    """What `everybyte fit --json` prints."""
    from everybyte.plan.answer import server_laid_out
    from everybyte.plan.formats import KEYS, fit_format
    from everybyte.plan.keys import SHARE, resolve_key

    asked = read(body, FitAsked)
    job = server_laid_out(read_job(asked.job))[0]
    try:
        if asked.grow in KEYS:
            return _line(as_json.format_object(job.name, fit_format(job)))
        if resolve_key(job, asked.grow.removeprefix("-")) == SHARE:
            from everybyte.plan.share import feasible

            return _line(as_json.share_object(job.name, feasible(job)))
        from everybyte.plan.answer import advice_on
        from everybyte.plan.fit import fit as grow

        result = grow(job, asked.grow)
        return _line(as_json.fit_object(job.name, result, advice_on(job, result)))
    except BadInput as error:
        raise _renamed(error, "--grow", "grow") from None


def compare(body: bytes) -> bytes:
    """What differs between the ranks that need most of two jobs, the settings that differ, and the verdicts on both."""
    from everybyte.report.differences import differences

    asked = read(body, CompareAsked)
    here, there = _answer(read_job(asked.job)), _against(asked.against)
    found = as_json.differences_object(here.worst, there.worst, differences(here.worst, there.worst))
    return _line({**found, "settings": list(_changed(here.job, there.job)), "verdicts": [_verdict(here), _verdict(there)]})


def charts(body: bytes) -> bytes:
    """Pictures of a job as Vega-Lite specifications."""
    from everybyte.report import charts as draw

    asked = read(body, ChartsAsked)
    job = read_job(asked.job)
    answer = _answer(job)
    rank = find_rank(answer, asked.rank, "rank") if asked.rank is not None else None
    found: dict[str, Spec] = {}
    with speaking(asked.lang):
        for name in asked.pictures if asked.pictures is not None else PICTURES:
            if name == "ranks":
                found[name] = draw.ranks(answer, theme=asked.theme)
            elif name != "card" or answer.hardware is not None:
                found[name] = getattr(draw, name)(answer, rank=rank, theme=asked.theme)
        if asked.knob is not None:
            found["knob"] = _knob(job, asked.knob, asked.theme)
    return _line({"pictures": found})


def _knob(job: Job, key: str, theme: Theme) -> Spec:
    from everybyte.plan.sweep import sweep
    from everybyte.report.charts import knob

    try:
        return knob(sweep(job, key), theme=theme)
    except BadInput as error:
        raise _renamed(error, "--grow", "knob") from None


def report(body: bytes) -> Reply:
    """The offline report: one HTML file."""
    from everybyte.report.html import report as write

    asked = read(body, ReportAsked)
    with speaking(asked.lang):
        return Reply(200, write(_answer(read_job(asked.job))).encode(), HTML)


def job_text(body: bytes) -> bytes:
    """The job file as `--save` writes it."""
    asked = read(body, JobAsked)
    return _line({"text": job_to_text(read_job(asked.job), f".{asked.format}")})


def truth(body: bytes) -> bytes:
    """What `everybyte truth --json` prints for the groups whose whole name matches the regular expression in `body`."""
    from everybyte.web.runs import by_groups

    return _line(by_groups(body.decode()))


def measured(body: bytes) -> bytes:
    """The measured runs of the same kind as the job: errors by group, and the picture of predicted against measured."""
    from everybyte.report.charts import truth as draw
    from everybyte.web.runs import like

    asked = read(body, MeasuredAsked)
    runs, comparisons, groups = like(read_job(asked.job))
    with speaking(asked.lang):
        picture = draw(comparisons, theme=asked.theme)
    return _line(MeasuredAnswer(runs=runs, groups=groups, picture=picture))


def read_files(body: bytes) -> bytes:
    """What dropped files say."""
    from everybyte.web.dropped import read_dropped

    return read_dropped(body)


TASKS: dict[str, Callable[[bytes], bytes | Reply]] = {
    "estimate": estimate,
    "explain": explain,
    "fit": fit,
    "compare": compare,
    "charts": charts,
    "report": report,
    "job": job_text,
    "truth": truth,
    "measured": measured,
    "read": read_files,
    "plan": plan,
    "hardware": hardware,
    "export": export,
    "doctor": doctor,
    "snapshot": snapshot,
    "figures": figures,
}


def _answer(job: Job, *, advise: bool = False) -> Answer:
    from everybyte.plan.answer import answered

    return answered(job, advise=advise)


def _against(raw: dict[str, Any]) -> Answer:
    """The answer to the second of two jobs; a fault is told as one of it."""
    try:
        return _answer(read_job(raw))
    except BadInput as error:
        raise type(error)(f"against.{error.path}".rstrip("."), error.message) from None


def _verdict(answer: Answer) -> dict[str, Any]:
    kept = ("name", "model", "hardware", "fits", "verdict", "chance", "headroom", "figures", "range", "warnings")
    return {key: getattr(answer, key) for key in kept}


def _changed(here: dict[str, Any], there: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The settings that are not the same in both."""
    left, right = dict(_leaves("", here)), dict(_leaves("", there))
    for key in dict.fromkeys([*left, *right]):
        if left.get(key) != right.get(key):
            yield {"key": key, "here": left.get(key), "there": right.get(key)}


def _leaves(path: str, value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, below in value.items():
        if isinstance(below, dict):
            yield from _leaves(join(path, key), below)
        else:
            yield join(path, key), below


def _renamed(error: BadInput, option: str, key: str) -> BadInput:
    """An error at a command's option, told as one at a key of the request."""
    return type(error)(key, error.message) if error.path == option else error


def _line(thing: object) -> bytes:
    return msgspec.json.encode(thing)
