"""The whole report, from the verdict down to the job file."""

from __future__ import annotations

from everybyte.basics.version import __version__
from everybyte.job import Job, job_to_text, read_job
from everybyte.ledger.answer import Answer
from everybyte.report.estimate import capacity_line, model_facts, settings_in_short
from everybyte.report.html.figures import figures_section
from everybyte.report.html.ledger import ledger_section
from everybyte.report.html.pictures import pictures_section
from everybyte.report.html.style import style
from everybyte.report.html.tags import Html, bullets, element, joined, table
from everybyte.report.language import language
from everybyte.report.sums import outcome
from everybyte.report.words import capital, shown_value


def report(answer: Answer, job: Job | None = None) -> str:
    """The answer as one HTML file that asks for nothing from anywhere: no script, no address to load. Raises MissingExtra without vl-convert.

    `job` is what was asked; without it the report has the job with all defaults filled in, as the answer does.
    """
    job = job or read_job(answer.job)
    sections = [
        ("Pictures", "pictures", pictures_section(answer)),
        ("Figures", "figures", figures_section(answer, job)),
        ("Notes", "notes", _notes(answer)),
        ("Ledger", "ledger", ledger_section(answer)),
        ("Settings", "settings", _settings(answer)),
        ("Job file", "job", element("pre", job_to_text(job), tabindex=0)),
    ]
    return document(f"{answer.name or answer.model.name}: {outcome(answer)}", head_of(answer), sections)


def document(title: str, header: Html, sections: list[tuple[str, str, Html]]) -> str:
    """A whole page: a header, and sections (title, anchor, body) with a menu; empty sections are left out."""
    kept = [(heading, name, body) for heading, name, body in sections if body]
    main = [element("section", element("h2", heading), body, id=name) for heading, name, body in kept]
    menu = element("nav", bullets([element("a", heading, href=f"#{name}") for heading, name, _ in kept]), aria_label="Parts of this report")
    body = element("body", header, menu, element("main", *main), _foot())
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(style())),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang=language())}\n"


def head_of(answer: Answer) -> Html:
    """The verdict first, then what it is about."""
    mark = {True: "good", False: "bad", None: "open"}[answer.fits]
    served = capacity_line(answer)
    lines = [
        element("p", answer.name or answer.model.name, class_="name"),
        element("h1", capital(outcome(answer)), class_=f"verdict {mark}"),
        element("p", " · ".join([*(_card(answer)), *model_facts(answer)])),
        element("p", " · ".join(settings_in_short(answer.job))),
        element("p", served.plain) if served else Html(),
    ]
    return element("header", *lines)


def _card(answer: Answer) -> list[str]:
    if answer.hardware is None:
        return ["no GPU named"]
    gpus = sum(rank.gpus for rank in answer.ranks)
    return [f"{gpus:,} × {answer.hardware.gpu}" if gpus > 1 else answer.hardware.gpu]


def _notes(answer: Answer) -> Html:
    """What stands in the way, what to watch, what was assumed."""
    blocks = [("Warnings", answer.warnings), ("Assumed", answer.assumptions)]
    return joined(*(joined(element("h3", title), bullets(list(lines))) for title, lines in blocks if lines))


def _settings(answer: Answer) -> Html:
    rows: list[list[object]] = [[element("code", setting.key), shown_value(setting.value), setting.origin] for setting in answer.settings]
    return table(["Setting", "Value", "Origin"], rows) if rows else Html()


def _foot() -> Html:
    return element("footer", f"everybyte {__version__}. GiB is 2³⁰ bytes, MiB is 2²⁰ bytes. Nothing in this file is loaded from anywhere else.")
