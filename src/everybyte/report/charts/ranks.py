"""Picture (c): the kinds of rank, or the stages of a pipeline, side by side."""

from __future__ import annotations

from everybyte.basics.units import GiB
from everybyte.ledger.answer import Answer, RankAnswer
from everybyte.ledger.by_category import by_category
from everybyte.ledger.entry import Category
from everybyte.report.charts.capacity import APART, upright
from everybyte.report.charts.spec import RIM, WIDTH, Row, Spec, colours, exact, gib, in_stack_order, picture, plain_labels, rim, size_axis, tooltip
from everybyte.report.palette import BACKGROUND, Theme
from everybyte.report.sums import rank_needs
from everybyte.report.words import category_label, short_size, spoken

MOST = 48
"""Kinds of rank beyond these, the smaller ones, are not drawn: the title says so."""
LABEL_ROOM = 130
"""Points for the names of the kinds, left of the bars."""


def ranks(answer: Answer, theme: Theme = "light") -> Spec:
    """Each kind of rank at its own peak as a bar by category, in the order of the stages, against the capacity of the card."""
    shown = shown_ranks(answer)
    totals = [{"rank": _label(rank), "gib": gib(rank_needs(answer, rank)), "short": short_size(rank_needs(answer, rank))} for rank in shown]
    capacity = answer.hardware.capacity if answer.hardware else None
    end = max(*(rank_needs(answer, rank) for rank in shown), capacity or 0, 1)
    data = [row for rank in shown for row in _rows(answer, rank, end)]
    step = 24 if len(shown) <= 24 else 16
    y: Spec = {
        "field": "rank",
        "type": "nominal",
        "sort": [_label(rank) for rank in shown],
        "title": None,
        "axis": {"ticks": False, "domain": False, "labelLimit": LABEL_ROOM, "labelPadding": 6},
    }
    found = in_stack_order({category for rank in shown for category in by_category(rank, rank_needs(answer, rank))})
    layers = [_bars(data, found, end, y, theme), *([upright(capacity, theme)] if capacity is not None else []), _sizes(totals, y)]
    return picture(
        {"width": WIDTH - LABEL_ROOM, "height": {"step": step}, "layer": layers, "resolve": APART},
        title=_title(answer),
        subtitle=_subtitle(answer, len(shown)),
        description=_description(answer, shown),
        theme=theme,
        left=LABEL_ROOM + 10,
    )


def shown_ranks(answer: Answer) -> list[RankAnswer]:
    """The kinds that are drawn, in the order of the answer."""
    if len(answer.ranks) <= MOST:
        return list(answer.ranks)
    largest = sorted(range(len(answer.ranks)), key=lambda i: -rank_needs(answer, answer.ranks[i]))[:MOST]
    return [answer.ranks[i] for i in sorted(largest)]


def _rows(answer: Answer, rank: RankAnswer, end: int) -> list[Row]:
    parts = by_category(rank, rank_needs(answer, rank))
    out, start = [], 0
    for category in in_stack_order(parts):
        size = parts[category]
        out.append(
            {
                "rank": _label(rank),
                "category": category_label(category),
                "from": gib(start),
                "to": gib(start + size),
                "bytes": size,
                "size": exact(size),
                "phase": spoken(rank.peak_phase),
                "rim": rim((WIDTH - LABEL_ROOM) * size / end),
            }
        )
        start += size
    return out


def _label(rank: RankAnswer) -> str:
    return f"{rank.label} × {rank.gpus:,}"


def _bars(data: list[Row], found: list[Category], end: int, y: Spec, theme: Theme) -> Spec:
    return {
        "data": {"values": data},
        "mark": {"type": "bar", "stroke": BACKGROUND.on(theme), "height": {"band": 0.8}},
        "encoding": {
            "strokeWidth": RIM,
            "y": y,
            "x": {"field": "from", "type": "quantitative", "scale": {"domain": [0, 1.01 * end / GiB], "nice": False}, "axis": size_axis()},
            "x2": {"field": "to"},
            "color": colours(plain_labels(found), theme),
            "tooltip": tooltip(("rank", "rank type"), ("category", "category"), ("size", "bytes"), ("phase", "peak in")),
        },
    }


def _sizes(totals: list[Row], y: Spec) -> Spec:
    """What each kind needs, in a column at the right."""
    return {
        "data": {"values": totals},
        "mark": {"type": "text", "align": "left", "dx": 8},
        "encoding": {"y": {**y, "axis": None}, "x": {"value": "width"}, "text": {"field": "short"}},
    }


def _title(answer: Answer) -> str:
    worst = answer.worst
    if len(answer.ranks) == 1:
        return f"All ranks are alike: each needs {short_size(rank_needs(answer, worst))}"
    least = min(answer.ranks, key=lambda rank: rank_needs(answer, rank))
    return f"{worst.label} needs most, {short_size(rank_needs(answer, worst))}; {least.label} least, {short_size(rank_needs(answer, least))}"


def _subtitle(answer: Answer, shown: int) -> str:
    facts = [answer.name or answer.model.name]
    if answer.hardware:
        facts.append(f"each {answer.hardware.gpu}")
    facts.append("rank type × number of GPUs, each at its own peak" if shown == len(answer.ranks) else f"the {shown} largest of {len(answer.ranks)} rank types")
    return " · ".join(facts)


def _description(answer: Answer, shown: list[RankAnswer]) -> str:
    sizes = ", ".join(f"{rank.label} {short_size(rank_needs(answer, rank))}" for rank in shown)
    against = f" against {short_size(answer.hardware.capacity)} of the GPU" if answer.hardware else ""
    return f"Peak memory of each rank type{against}: {sizes}."
