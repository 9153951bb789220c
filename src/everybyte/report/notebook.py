"""What a notebook shows of an answer or a ledger: the verdict, the card and the phases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everybyte.basics.errors import MissingExtra
from everybyte.ledger.answer import Answer, RankAnswer
from everybyte.ledger.by_category import by_category
from everybyte.ledger.ledger import Ledger
from everybyte.report.charts import Spec, card, phases, together
from everybyte.report.charts.phases import phases_of
from everybyte.report.charts.spec import in_stack_order
from everybyte.report.html.pictures import svg
from everybyte.report.html.tags import Html, element, joined, table
from everybyte.report.sums import outcome, rank_needs
from everybyte.report.words import capital, category_label, short_size, spoken

VEGA_LITE = "application/vnd.vegalite.v5+json"


def mimebundle(thing: object) -> dict[str, Any]:
    """Forms of an Answer or a Ledger by type of content. Without vl-convert the HTML has a table in place of pictures. Raises TypeError for other things."""
    if isinstance(thing, Answer):
        return _answer(thing)
    if isinstance(thing, Ledger):
        return _ledger(thing)
    raise TypeError(f"{type(thing).__name__} has no form for notebooks")


def _answer(answer: Answer) -> dict[str, Any]:
    line = f"{answer.name or answer.model.name}: {outcome(answer)}"
    pictures = [card(answer), phases(answer)]
    notes = [element("p", warning) for warning in answer.warnings]
    shown = _drawn(pictures) or _parts(answer.worst, rank_needs(answer, answer.worst))
    html = element("div", element("p", element("strong", capital(outcome(answer))), f" ({answer.name or answer.model.name})"), shown, *notes)
    return {"text/plain": line, "text/html": str(html), VEGA_LITE: together(pictures)}


def _ledger(ledger: Ledger) -> dict[str, Any]:
    if not ledger.entries:
        return {"text/plain": "an empty ledger", "text/html": "<p>an empty ledger</p>"}
    peak = ledger.peak()
    line = f"{len(ledger.entries)} rows; {short_size(peak.allocated)} allocated at the peak, in {spoken(peak.name)}"
    rank = RankAnswer(
        label="ledger", gpus=1, stage=0, figures={"peak.allocated": peak.allocated}, peak_phase=peak.name, phases=ledger.phases(), ledger=ledger.entries
    )
    picture = phases_of(rank)
    html = element("div", element("p", element("strong", capital(line))), _drawn([picture]) or _parts(rank, None))
    return {"text/plain": line, "text/html": str(html), VEGA_LITE: picture}


def _drawn(pictures: Sequence[Spec]) -> Html | None:
    """The pictures one below the other; None where they cannot be drawn."""
    try:
        return joined(*(element("div", svg(picture), role="img", aria_label=picture["description"]) for picture in pictures))
    except MissingExtra:
        return None


def _parts(rank: RankAnswer, needed: int | None) -> Html:
    parts = by_category(rank, needed)
    rows: list[list[object]] = [[category_label(category), short_size(parts[category], digits=2)] for category in in_stack_order(parts)]
    return table([f"At the peak, in {spoken(rank.peak_phase)}", "Size"], rows)
