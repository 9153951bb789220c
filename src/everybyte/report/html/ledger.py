"""The ledger of every kind of rank: each row with its formula, the numbers put in, the symbols and the source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

from everybyte.ledger.answer import Answer, RankAnswer
from everybyte.ledger.entry import CATEGORIES, Category, Entry
from everybyte.report.explain import BASIS_MEANING
from everybyte.report.html.tags import Html, element, joined
from everybyte.report.sums import rank_needs
from everybyte.report.words import category_label, short_size, spoken

_ADDRESS = re.compile(r"<(https://[^\s<>]+)>")


class Sources:
    """The sources in the order in which rows first name them; a row carries the number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def mark(self, source: str) -> Html:
        """`[3]`, a link to the source below."""
        number = self.numbers.setdefault(source, len(self.numbers) + 1)
        return element("a", f"[{number}]", href=f"#source-{number}", title=source)

    def listed(self) -> Html:
        """All of them, numbered."""
        return element("ol", *(element("li", _linked(source), id=f"source-{number}") for source, number in self.numbers.items()), class_="sources")


def ledger_section(answer: Answer) -> Html:
    """A part that opens for each kind of rank, the one that needs most first and open; then the sources."""
    sources = Sources()
    order = sorted(answer.ranks, key=lambda rank: -rank_needs(answer, rank))
    parts = [_rank(answer, rank, sources, opened=rank is answer.worst) for rank in order]
    basis = "; ".join(BASIS_MEANING.values())
    about = element("p", f"Rows by category, the largest first; a dot marks what is in memory at the peak. Basis of a row: {basis}.")
    return joined(about, *parts, element("h3", "Sources"), sources.listed())


def _rank(answer: Answer, rank: RankAnswer, sources: Sources, *, opened: bool) -> Html:
    gpus = f"{rank.gpus:,} GPU{'s' if rank.gpus != 1 else ''}"
    needs = short_size(rank_needs(answer, rank), digits=2)
    summary = element("summary", element("strong", rank.label), f" · {gpus} · needs {needs} · peak in {spoken(rank.peak_phase)} · {len(rank.ledger)} rows")
    return element("details", summary, *_categories(rank, sources), open=opened, class_="rank")


def _categories(rank: RankAnswer, sources: Sources) -> Iterator[Html]:
    by_category: dict[Category, list[Entry]] = {}
    for entry in rank.ledger:
        by_category.setdefault(entry.category, []).append(entry)

    def at_peak(category: Category) -> int:
        return sum(entry.bytes for entry in by_category[category] if rank.peak_phase in entry.phases)

    for category in sorted((c for c in CATEGORIES if c in by_category), key=lambda c: -at_peak(c)):
        rows = sorted(by_category[category], key=lambda entry: -entry.bytes)
        size = at_peak(category)
        words = f"{category_label(category)}, {short_size(size, digits=2) if size else 'nothing'} at the peak"
        title = element("summary", element("span", class_=f"swatch {category}", aria_hidden="true"), words)
        yield element("details", title, _table(rank, rows, sources, category), class_="category", open=True)


def _table(rank: RankAnswer, rows: list[Entry], sources: Sources, category: Category) -> Html:
    """The rows of a category. Roles are spelled out because the style for phones lays the cells out anew, which would take them away."""
    titles = ("Row", "Size", "Formula, with the numbers put in, and its source")
    head = element("tr", *(element("th", title, scope="col", role="columnheader") for title in titles), role="row")
    body = (_row(rank, entry, sources) for entry in rows)
    caption = element("caption", f"{category_label(category)} rows of {rank.label}", class_="unseen")
    parts = (element("thead", head, role="rowgroup"), element("tbody", *body, role="rowgroup"))
    return element("table", caption, *parts, class_="rows", role="table")


def _row(rank: RankAnswer, entry: Entry, sources: Sources) -> Html:
    lives = "all phases" if len(entry.phases) == len(rank.phases) else ", ".join(spoken(phase) for phase in entry.phases)
    mark = "peak" if rank.peak_phase in entry.phases else None
    size = [short_size(entry.bytes, digits=2), element("small", f"{entry.bytes:,} bytes")]
    if entry.low is not None and entry.high is not None:
        size.append(element("small", f"{short_size(entry.low, digits=2)} – {short_size(entry.high, digits=2)}"))
    name = element("th", entry.id, element("small", lives), scope="row", role="rowheader", class_=mark)
    return element("tr", name, element("td", *size, role="cell"), element("td", *_how(entry, sources), role="cell"), role="row")


def _how(entry: Entry, sources: Sources) -> Iterator[Html]:
    yield element("code", entry.formula)
    numbers = entry.numbers()
    if numbers != entry.formula:
        yield element("code", f"= {numbers}", class_="numbers")
    symbols = ", ".join(f"{name} = {value:,}" for name, value in entry.symbols.items())
    yield element("small", f"{symbols} · " if symbols else "", f"{entry.basis} ", sources.mark(entry.source))


def _linked(source: str) -> Html:
    """The text of a source with its address as a link."""
    match = _ADDRESS.search(source)
    if match is None:
        return Html(escape(source))
    address = element("a", match[1], href=match[1], rel="noreferrer")
    return joined(source[: match.start()], address, source[match.end() :])
