"""The pictures of the report, drawn for white paper and for a dark page."""

from __future__ import annotations

import re
from collections.abc import Callable

from everybyte.ledger.answer import Answer
from everybyte.report.charts import Spec, Theme, card, draw, phases, places, ranks
from everybyte.report.html.tags import Html, element, joined

THEMES: tuple[Theme, ...] = ("light", "dark")


def pictures_section(answer: Answer) -> Html:
    """Card, phases, kinds of rank where there are several, places."""
    makers: list[Callable[[Theme], Spec]] = [lambda theme: card(answer, theme=theme), lambda theme: phases(answer, theme=theme)]
    if len(answer.ranks) > 1:
        makers.append(lambda theme: ranks(answer, theme=theme))
    makers.append(lambda theme: places(answer, theme=theme))
    return joined(*(figure(make) for make in makers))


def figure(make: Callable[[Theme], Spec]) -> Html:
    """One picture in both themes, of which the page shows one; its description is what a screen reader says."""
    drawn = [(theme, make(theme)) for theme in THEMES]
    return element("figure", *(element("div", svg(spec), class_=theme, role="img", aria_label=spec["description"], tabindex=0) for theme, spec in drawn))


def svg(spec: Spec) -> Html:
    """The picture as an element of a page, without the words of each mark for screen readers: the whole has its description."""
    bare = {**spec, "config": {**spec["config"], "aria": False}}
    text = draw(bare, ".svg").decode()
    start = text.index("<svg")
    return Html(_LONG_NUMBER.sub(lambda match: f"{float(match[0]):.2f}", text[start:]))


_LONG_NUMBER = re.compile(r"(?<=[\s\",(MLHVhvlm-])\d+\.\d{3,}")
"""Coordinates with more digits than a screen has points."""
